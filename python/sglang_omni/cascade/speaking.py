"""The stage of a voice elsewhere: text to the part, sentence by sentence, and sound back as it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_omni.cascade.connection import PartConnection
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.models.speech_chat.components.voice import speakable
from sglang_omni.models.speech_chat.speak import FIRST_CLAUSE_CHARS
from sglang_omni.preprocessing.request import mapping_param, stage_params, task_of, wants_stream
from sglang_omni.preprocessing.sentences import SentenceSplitter
from sglang_omni.proto import RequestError, StagePayload, first_failure
from sglang_omni.proto.tasks import AudioChunk, AudioResult, SpokenWord, VoiceResult, later
from sglang_omni.scheduling.async_scheduler import AsyncRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

# OpenAI's servers refuse a request without a voice; those of one voice take this name for it.
_DEFAULT_VOICE = "alloy"
# Sentences of one answer that are made at once: the next one while one is heard.
_AHEAD = 2
_END = object()


class RemoteSpeaking:
    """From ``{"text": str}``, in the payload or in each item of the stream, to speech.

    Args:
        part: Speaks.
    """

    def __init__(self, part: PartConnection) -> None:
        self._part = part

    async def speak(self, request: AsyncRequest) -> AudioResult | VoiceResult:
        """Puts out the sound of each sentence with its text as ``spoken_text``, and with the words' times if
        the part tells; the result is all of it.

        Raises:
            RequestError: The part refuses the text, or fails.
        """
        if task_of(request.payload.request) == "voice":
            return await self._to_keep(request.payload)
        answer = _Answer(request)
        try:
            await self._speak_all(answer, request)
        except BaseExceptionGroup as failed:
            raise first_failure(failed) from None
        return answer.result()

    async def _to_keep(self, payload: StagePayload) -> VoiceResult:
        """The recording of a voice, encoded."""
        whole = await self._part.whole(
            GenerateRequest(prompt=payload.data, stream=False, metadata={"task": "voice"})
        )
        result: VoiceResult = whole.result
        return result

    async def _speak_all(self, answer: _Answer, request: AsyncRequest) -> None:
        sentences: asyncio.Queue[Any] = asyncio.Queue()
        places = asyncio.Semaphore(_AHEAD)
        async with asyncio.TaskGroup() as group:

            async def split() -> None:
                async for sentence in answer.sentences():
                    await places.acquire()
                    sound: asyncio.Queue[Any] = asyncio.Queue()
                    group.create_task(self._speak(sentence, request.payload, sound))
                    sentences.put_nowait((sentence, sound))
                sentences.put_nowait(_END)

            group.create_task(split())
            while (next_one := await sentences.get()) is not _END:
                sentence, sound = next_one
                while (piece := await sound.get()) is not _END:
                    samples, sample_rate, words = piece
                    answer.hear(samples, sample_rate, words, sentence)
                    sentence = ""
                places.release()

    async def _speak(self, sentence: str, payload: StagePayload, sound: asyncio.Queue[Any]) -> None:
        """Puts ``(samples, sample_rate, words)`` into ``sound`` as they come, and the end."""
        seconds = 0.0
        async with aclosing(self._part.parts(self._request(sentence, payload))) as parts:
            async for part in parts:
                if (samples := part.samples) is not None:
                    words = [
                        SpokenWord(word=each.word, start=each.start - seconds, end=each.end - seconds)
                        for each in part.words
                    ]
                    sound.put_nowait((samples, part.sample_rate, words))
                    seconds += part.audio_seconds
        sound.put_nowait(_END)

    def _request(self, sentence: str, payload: StagePayload) -> GenerateRequest:
        params = stage_params(payload.request, "speak")
        if task_of(payload.request) != "speech":
            # A chat's seed is its text's; not every voice takes one.
            own = mapping_param(payload.request.params, "stage_params").get("speak") or {}
            params = {**params, "seed": own.get("seed")}
        extra = {name: params[name] for name in ("speed", "seed", "language") if params.get(name) is not None}
        kept = payload.data.get("voice")
        voice = params.get("voice") or self._part.config.voice
        if voice is None and self._part.config.url is not None:
            voice = _DEFAULT_VOICE
        if voice is not None and kept is None:
            extra["voice"] = voice
        return GenerateRequest(
            prompt=sentence,
            voice=kept,
            extra_params=extra,
            stream=True,
            output_modalities=["audio"],
            metadata={"task": "speech"},
        )


class _Answer:
    """What is to be spoken of one request, and its sound so far."""

    def __init__(self, request: AsyncRequest) -> None:
        self._request = request
        self._streams = wants_stream(request.payload.request)
        self._text: list[str] = []
        self._sound: list[NDArray[np.float32]] = []
        self._words: list[SpokenWord] = []
        self._sample_rate: int | None = None

    async def sentences(self) -> AsyncIterator[str]:
        """What can be spoken, as it is written; a text that is there as a whole is spoken as a whole."""
        payload = self._request.payload
        if task_of(payload.request) == "speech":
            self._text.append(payload.data["text"])
            yield payload.data["text"]
            return
        splitter = SentenceSplitter(first_clause_chars=FIRST_CLAUSE_CHARS)
        async for item in self._request.stream():
            self._text.append(item["text"])
            for sentence in splitter.feed(item["text"]):
                if spoken := _spoken(sentence):
                    yield spoken
        for sentence in splitter.flush():
            if spoken := _spoken(sentence):
                yield spoken

    def hear(
        self, samples: NDArray[np.float32], sample_rate: int, words: list[SpokenWord], sentence: str
    ) -> None:
        """``words``: Those that begin in the samples, timed from the first of them.

        Raises:
            RequestError: The voice has changed its sample rate within the answer.
        """
        if self._sample_rate not in (None, sample_rate):
            raise RequestError(
                f"the voice's sample rate changed from {self._sample_rate} to {sample_rate} within an answer",
                code="upstream_failed",
                status=502,
            )
        self._sample_rate = sample_rate
        self._words += later(words, sum(map(len, self._sound)) / sample_rate)
        self._sound.append(samples)
        if self._streams:
            self._request.put(
                AudioChunk(
                    modality="audio",
                    audio_data=samples,
                    sample_rate=sample_rate,
                    spoken_text=sentence,
                    words=words,
                )
            )

    def result(self) -> AudioResult:
        return AudioResult(
            modality="audio",
            audio_data=np.concatenate(self._sound) if self._sound else np.zeros(0, np.float32),
            sample_rate=self._sample_rate or 24_000,
            text="".join(self._text).strip(),
            words=self._words,
        )


def _spoken(sentence: str) -> str:
    """The sentence without markup; empty if nothing of it can be spoken."""
    text = speakable(sentence).strip()
    return text if any(character.isalnum() for character in text) else ""
