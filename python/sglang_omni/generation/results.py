"""Answers as callers use them: completions and parts with encoded sound, files of speech, transcripts."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field

from sglang_omni.generation.answer import AnswerFields, GenerateChunk
from sglang_omni.generation.audio import (
    AudioFileEncoder,
    Base64Pieces,
    audio_to_base64,
    encodable_rate,
    encode_audio,
)
from sglang_omni.generation.errors import no_audio
from sglang_omni.generation.fields import TranscriptionSegment, TranscriptionWord, UsageInfo
from sglang_omni.generation.samples import DEFAULT_SAMPLE_RATE
from sglang_omni.proto import StageTime


@dataclass
class CompletionAudio:
    """Spoken output: ``data`` is base64 of a file in the requested format.

    Attributes:
        words: With their times, if the pipeline tells.
    """

    id: str
    data: str
    transcript: str | None = None
    words: list[TranscriptionWord] = field(default_factory=list)

    @property
    def audio_bytes(self) -> bytes:
        """``data``, decoded: the file."""
        return base64.b64decode(self.data)


@dataclass
class CompletionResult(AnswerFields):
    """A whole completion."""

    request_id: str
    text: str
    audio: CompletionAudio | None = None
    finish_reason: str = "stop"
    usage: UsageInfo | None = None

    @classmethod
    def of(cls, whole: GenerateChunk, audio: CompletionAudio | None) -> CompletionResult:
        """A whole answer with its sound encoded."""
        reason = whole.finish_reason or "stop"
        return cls(whole.request_id, whole.text, audio, reason, whole.usage, **whole.shared())


@dataclass
class SpeechResult:
    """Spoken text as an encoded file.

    Attributes:
        sample_rate: In Hz.
        duration: In seconds.
        words: With their times, if the pipeline tells.
    """

    audio_bytes: bytes
    mime_type: str
    format: str
    sample_rate: int | None = None
    usage: UsageInfo | None = None
    timings: dict[str, StageTime] | None = None
    worker: str | None = None
    finish_reason: str = "stop"
    duration: float | None = None
    words: list[TranscriptionWord] = field(default_factory=list)


@dataclass
class TranscriptionResult:
    """The transcript of a recording; ``duration`` in seconds."""

    text: str
    language: str | None = None
    duration: float | None = None
    segments: list[TranscriptionSegment] = field(default_factory=list)
    timings: dict[str, StageTime] | None = None
    worker: str | None = None

    @property
    def words(self) -> list[TranscriptionWord]:
        """All words, if the request wants their times."""
        return [word for segment in self.segments for word in segment.words]

    @classmethod
    def of(cls, whole: GenerateChunk) -> TranscriptionResult:
        """A whole answer as a transcript.

        Of sound that came while it was transcribed, the pipeline's result may differ from what it has
        streamed: it knows what followed each word. The result counts.
        """
        text = whole.result.get("text", whole.text) if isinstance(whole.result, dict) else whole.text
        return cls(text, whole.language, whole.duration, whole.segments, whole.timings, whole.worker)


async def to_completion(whole: GenerateChunk, audio_format: str) -> CompletionResult:
    """A whole answer, its sound, if there is any, encoded as ``audio_format``."""
    audio, samples = None, whole.samples
    if samples is not None:
        data = await asyncio.to_thread(
            audio_to_base64,
            samples,
            sample_rate=whole.sample_rate or DEFAULT_SAMPLE_RATE,
            output_format=audio_format,
        )
        audio = CompletionAudio(f"audio-{whole.request_id}", data, whole.text or None, whole.words)
    return CompletionResult.of(whole, audio)


async def to_speech(whole: GenerateChunk, audio_format: str) -> SpeechResult:
    """The sound of a whole answer as a file.

    Raises:
        NoAudioError: There is none.
        RequestError: The request was aborted before there was any.
    """
    samples, rate = whole.samples, whole.sample_rate or DEFAULT_SAMPLE_RATE
    if samples is None:
        raise no_audio(whole.finish_reason)
    data, mime = await asyncio.to_thread(
        encode_audio, samples, response_format=audio_format, sample_rate=rate
    )
    return SpeechResult(
        audio_bytes=data,
        mime_type=mime,
        format=audio_format,
        sample_rate=encodable_rate(audio_format, rate),
        usage=whole.usage,
        timings=whole.timings,
        worker=whole.worker,
        finish_reason=whole.finish_reason or "stop",
        duration=whole.audio_seconds,
        words=whole.words,
    )


class PartEncoder:
    """Encodes the sound of one answer's parts as pieces of one file.

    Raises:
        ValueError: The format is unknown, or its encoder is not installed.
    """

    def __init__(self, audio_format: str) -> None:
        self._file = AudioFileEncoder(audio_format)
        self._pieces = Base64Pieces()

    @property
    def sample_rate(self) -> int | None:
        """The file's, in Hz; None before the first sound."""
        return self._file.sample_rate or None

    async def encode(self, part: GenerateChunk) -> str | None:
        """The next piece of the file as base64; None if there is nothing ready."""
        data, is_last = b"", part.finish_reason is not None
        if (samples := part.samples) is not None:
            rate = part.sample_rate or DEFAULT_SAMPLE_RATE
            data = await self._file.off_loop(self._file.encode, samples, rate)
        if is_last:
            data += await self._file.off_loop(self._file.finish)
        return self._pieces.add(data, last=is_last) or None
