"""The stage of speech recognition elsewhere: recordings to the part, and transcripts back."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.cascade.connection import PartConnection
from sglang_omni.generation.answer import AnswerBuilder, GenerateChunk
from sglang_omni.generation.request import transcription_request
from sglang_omni.generation.samples import encode_wav
from sglang_omni.models.speech_chat.components.whisper import SAMPLE_RATE
from sglang_omni.models.speech_chat.conversation import for_thinker, with_transcripts
from sglang_omni.preprocessing.request import answers_in_text, stage_params, task_of, wants_stream
from sglang_omni.proto import first_failure
from sglang_omni.proto.tasks import TextChunk, Transcript
from sglang_omni.scheduling.async_scheduler import AsyncRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PARAMS = ("language", "prompt", "temperature", "word_timestamps")


class RemoteHearing:
    """A chat ends with what ``for_thinker`` makes of it and an ``input_transcript``, a transcription with the
    caller's result.

    Args:
        part: Recognizes speech.
        chats: As of ``for_thinker``.
        cache_size: Clips whose transcripts are kept: a conversation sends its earlier ones with every turn.
    """

    def __init__(self, part: PartConnection, chats: ChatPrompts | None, *, cache_size: int = 256) -> None:
        self._part = part
        self._chats = chats
        self._cache_size = cache_size
        self._cache: OrderedDict[bytes, str] = OrderedDict()

    async def hear(self, request: AsyncRequest) -> dict[str, Any]:
        """
        Raises:
            RequestError: The part refuses the recording, or fails.
        """
        if task_of(request.payload.request) == "chat":
            return await self._chat(request)
        return await self._transcription(request)

    async def _chat(self, request: AsyncRequest) -> dict[str, Any]:
        payload = request.payload
        # What one conversation asks for at once is bounded by the limits of its audio.
        try:
            async with asyncio.TaskGroup() as group:
                heard = [group.create_task(self._heard(clip)) for clip in payload.data["clips"]]
        except BaseExceptionGroup as failed:
            raise first_failure(failed) from None
        messages, transcript = with_transcripts(payload.data["messages"], [task.result() for task in heard])
        result = await asyncio.to_thread(for_thinker, messages, payload.request, self._chats)
        if transcript is not None and wants_stream(payload.request) and answers_in_text(payload.request):
            request.put(TextChunk(modality="text", input_transcript=transcript))
        return {**result, "input_transcript": transcript}

    async def _heard(self, clip: NDArray[np.float32]) -> str:
        key = hashlib.blake2b(clip.data).digest()
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        whole = await self._part.whole(transcription_request(encode_wav(clip, SAMPLE_RATE)))
        self._cache[key] = text = whole.text.strip()
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return text

    async def _transcription(self, request: AsyncRequest) -> dict[str, Any]:
        payload = request.payload
        params = stage_params(payload.request, "transcribe")
        given = {name: params[name] for name in _PARAMS if params.get(name) is not None}
        # Not every server can stream a transcript. A pipeline of this machine is one's own.
        streams = wants_stream(payload.request) and self._part.config.url is None
        sent = transcription_request(
            bytes(payload.data["audio"]),
            stream=streams,
            translate=task_of(payload.request) == "translation",
            **given,
        )
        answer = AnswerBuilder()
        async with aclosing(self._part.parts(sent)) as parts:
            async for part in parts:
                answer.join(part)
                if wants_stream(payload.request) and (part.text or part.segments):
                    request.put(TextChunk(modality="text", text=part.text, segments=_segments(part)))
        whole = answer.whole()
        result = Transcript(modality="text", text=whole.text, segments=_segments(whole))
        if whole.language is not None:
            result["language"] = whole.language
        if whole.duration is not None:
            result["duration"] = whole.duration
        return {**result}


def _segments(chunk: GenerateChunk) -> list[Any]:
    """The chunk's segments as stages report them."""
    return [
        {name: value for name, value in asdict(segment).items() if value is not None and value != []}
        for segment in chunk.segments
    ]
