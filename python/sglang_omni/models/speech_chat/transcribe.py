"""The transcribe stage: audio to the result of a transcription, or to a part of a chat's prompt."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.models.speech_chat.components.whisper import SAMPLE_RATE, SpeechSegment, Whisper
from sglang_omni.models.speech_chat.conversation import for_thinker, with_transcripts
from sglang_omni.models.speech_chat.listening import NewText, SoundListener, transcript_piece
from sglang_omni.models.speech_chat.windows import windows
from sglang_omni.preprocessing.audio import decode_blocks
from sglang_omni.preprocessing.deadline import Deadline
from sglang_omni.preprocessing.request import (
    answers_in_text,
    stage_params,
    task_of,
)
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.proto.tasks import TextChunk, Transcript, TranscriptPiece
from sglang_omni.scheduling.stream_scheduler import StreamSession

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Recognizer:
    """Whisper with a cache: a conversation sends its earlier clips again with every turn."""

    def __init__(self, whisper: Whisper, cache_size: int = 256) -> None:
        self.whisper = whisper
        self._cache_size = cache_size
        self._cache: OrderedDict[bytes, tuple[SpeechSegment, ...]] = OrderedDict()

    def segments(self, samples: NDArray[np.float32]) -> Iterator[SpeechSegment]:
        """Yields the clip's segments as they are decoded, or from the cache if it was decoded before.

        Args:
            samples: float32, shape (n,), 16 kHz.
        """
        key = hashlib.blake2b(samples.data).digest()
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            yield from known
            return
        heard = []
        for start, window in windows([samples]):
            for segment in self.whisper.segments(window):
                heard.append(segment.after(start / SAMPLE_RATE))
                yield heard[-1]
        self._cache[key] = tuple(heard)
        if len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)


@dataclass(frozen=True)
class RecordingLimits:
    """Limits of a recording to transcribe.

    Attributes:
        seconds: Its length.
        decode_seconds: Time to decode one window of it.
    """

    seconds: float = 14_400.0
    decode_seconds: float = 30.0


class AudioRecording:
    """An encoded recording of any length, decoded and cut window by window."""

    def __init__(self, data: bytes, limits: RecordingLimits) -> None:
        self._limits = limits
        self._blocks = decode_blocks(
            data, param="file", sample_rate=SAMPLE_RATE, max_seconds=limits.seconds, check=self._check
        )
        self._samples = 0

    @property
    def seconds(self) -> float:
        """The length of what has been decoded."""
        return self._samples / SAMPLE_RATE

    def windows(self) -> Iterator[tuple[float, NDArray[np.float32]]]:
        """Yields each window's start in seconds, and its samples.

        Raises:
            RequestError: The recording cannot be decoded, or is too long.
        """
        self._restart_deadline()
        for start, window in windows(self._counted()):
            yield start / SAMPLE_RATE, window
            self._restart_deadline()

    def _counted(self) -> Iterator[NDArray[np.float32]]:
        for block in self._blocks:
            self._samples += len(block)
            yield block

    def _restart_deadline(self) -> None:
        # Between windows, Whisper and other requests take their time.
        self._deadline = Deadline(self._limits.decode_seconds, param="file")

    def _check(self) -> None:
        self._deadline()


class TranscribeSession(StreamSession):
    """One request with audio.

    A chat ends with what ``for_thinker`` makes of it and an ``input_transcript``, and a transcription with
    the caller's result; that of sound which comes while it runs, with ``sample_rate`` in its payload, is fed
    with float32 arrays (n,). A recording of hours takes as many turns as it has windows and segments, between
    which other requests have theirs.

    Args:
        chats: None for a thinker that takes messages.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        chats: ChatPrompts | None,
        limits: RecordingLimits | None = None,
    ) -> None:
        self._recognizer = recognizer
        self._chats = chats
        self._limits = limits or RecordingLimits()
        self._result: dict[str, Any] = {}
        # Of sound that comes while the request runs.
        self._listener: SoundListener | None = None
        self._has_text = False

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        if task_of(payload.request) == "chat":
            return self._chat(payload)
        if (rate := payload.data.get("sample_rate")) is None:
            return self._transcription(payload)
        transcribe = partial(self._recognizer.whisper.segments, **_options(payload.request))
        self._listener = SoundListener(transcribe, rate, self._limits.seconds)
        return iter(())

    def feed(self, data: Any) -> Iterator[TextChunk | None]:
        assert self._listener is not None, "begin comes first"
        return self._certain(self._listener.add(data, more_waits=self.num_waiting > 0))

    def end(self) -> Iterator[TextChunk | None]:
        if (listener := self._listener) is not None:
            yield from self._certain(listener.end(np.zeros(0, np.float32)))
            self._finish(listener.segments, listener.seconds)

    def result(self) -> dict[str, Any]:
        return self._result

    def _certain(self, new: Iterator[NewText]) -> Iterator[TextChunk | None]:
        for words, segments in new:
            text = " ".join(["", *words] if self._has_text else words) if words else ""
            self._has_text = self._has_text or bool(words)
            if text or segments:
                yield TextChunk(modality="text", text=text, segments=list(segments))
            yield None

    def _chat(self, payload: StagePayload) -> Iterator[TextChunk | None]:
        transcripts = []
        for clip in payload.data["clips"]:
            texts = []
            for segment in self._recognizer.segments(clip):
                texts.append(segment.text)
                yield None
            transcripts.append(" ".join(texts))
        messages, transcript = with_transcripts(payload.data["messages"], transcripts)
        self._result = {
            **for_thinker(messages, payload.request, self._chats),
            "input_transcript": transcript,
        }
        if transcript is not None and answers_in_text(payload.request):
            yield TextChunk(modality="text", input_transcript=transcript)

    def _transcription(self, payload: StagePayload) -> Iterator[TextChunk | None]:
        recording = AudioRecording(payload.data["audio"], self._limits)
        options = _options(payload.request)
        segments: list[TranscriptPiece] = []
        for start, window in recording.windows():
            for heard in self._recognizer.whisper.segments(window, **options):
                segment = transcript_piece(heard, start)
                text = f" {heard.text}" if segments else heard.text
                segments.append(segment)
                yield TextChunk(modality="text", text=text, segments=[segment])
            yield None
        self._finish(segments, recording.seconds)

    def _finish(self, segments: list[TranscriptPiece], seconds: float) -> None:
        text = " ".join(segment["text"] for segment in segments)
        self._result = {**Transcript(text=text, language="en", duration=seconds, segments=segments)}


def _options(request: OmniRequest) -> dict[str, Any]:
    """The arguments of ``Whisper.segments`` that a request gives."""
    given = stage_params(request, "transcribe")
    return {
        name: given[name]
        for name in ("prompt", "temperature", "word_timestamps")
        if given.get(name) is not None
    }
