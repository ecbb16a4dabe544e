"""The transcribe stage: audio to the result of a transcription, or to a part of a chat's prompt."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.models.speech_chat.components.whisper import SAMPLE_RATE, SpeechSegment, Whisper
from sglang_omni.models.speech_chat.conversation import with_transcripts
from sglang_omni.preprocessing.request import (
    answers_in_text,
    stage_params,
    task_of,
)
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.stream_scheduler import StreamSession

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Recognizer:
    """Whisper with a cache: a conversation sends its earlier clips again with every turn."""

    def __init__(self, whisper: Whisper, cache_size: int = 256) -> None:
        self._whisper = whisper
        self._cache_size = cache_size
        self._cache: OrderedDict[bytes, tuple[SpeechSegment, ...]] = OrderedDict()

    def segments(self, samples: NDArray[np.float32], prompt: str | None = None) -> Iterator[SpeechSegment]:
        """Yields the clip's segments as they are decoded, or from the cache if it was decoded before.

        Args:
            samples: float32, shape (n,), 16 kHz.
            prompt: Text that came before, or words to expect.
        """
        key = hashlib.blake2b(samples.data, key=hashlib.blake2b((prompt or "").encode()).digest()).digest()
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            yield from known
            return
        heard = []
        for segment in self._whisper.segments(samples, prompt):
            heard.append(segment)
            yield segment
        self._cache[key] = tuple(heard)
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)


class TranscribeSession(StreamSession):
    """One request with audio.

    A chat ends with ``{"prompt_token_ids", "input_transcript"}`` for the thinker, perhaps with a ``reading``,
    and a transcription with the caller's result.
    """

    def __init__(self, recognizer: Recognizer, chats: ChatPrompts) -> None:
        self._recognizer = recognizer
        self._chats = chats
        self._result: dict[str, Any] = {}

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        if task_of(payload.request) == "chat":
            return self._chat(payload)
        return self._transcription(payload)

    def result(self) -> dict[str, Any]:
        return self._result

    def _chat(self, payload: StagePayload) -> Iterator[dict[str, Any] | None]:
        transcripts = []
        for clip in payload.data["clips"]:
            texts = []
            for segment in self._recognizer.segments(clip):
                texts.append(segment.text)
                yield None
            transcripts.append(" ".join(texts))
        messages, transcript = with_transcripts(payload.data["messages"], transcripts)
        token_ids, reading = self._chats.encode(messages, payload.request)
        self._chats.prompts.check_answer(len(token_ids), stage_params(payload.request, "thinker"))
        self._result = {"prompt_token_ids": token_ids, "input_transcript": transcript}
        if reading is not None:
            self._result["reading"] = reading
        if transcript is not None and answers_in_text(payload.request):
            yield {"modality": "text", "input_transcript": transcript}

    def _transcription(self, payload: StagePayload) -> Iterator[dict[str, Any]]:
        (clip,) = payload.data["clips"]
        prompt = stage_params(payload.request, "transcribe").get("prompt")
        segments: list[dict[str, Any]] = []
        for segment in self._recognizer.segments(clip, prompt):
            yield {"modality": "text", "text": f" {segment.text}" if segments else segment.text}
            segments.append({"start": segment.start, "end": segment.end, "text": segment.text})
        self._result = {
            "text": " ".join(segment["text"] for segment in segments),
            "language": "en",
            "duration": len(clip) / SAMPLE_RATE,
            "segments": segments,
        }
