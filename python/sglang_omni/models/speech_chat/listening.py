"""A transcript that is written while the sound comes.

Whisper knows no stream: it looks at the sound again and again as it grows. What two looks in turn agree on is
certain enough to be sent and is not taken back, as in "LocalAgreement-2" of Macháček et al. 2023, "Turning
Whisper into Real-Time Transcription System". Each complete window is then transcribed as one of a recording,
so that the final transcript is that of the recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from sglang_omni.models.speech_chat.components.whisper import SAMPLE_RATE, SpeechSegment
from sglang_omni.models.speech_chat.windows import Window, WindowCutter
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import TranscriptPiece

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# New sound between two looks.
_STEP = SAMPLE_RATE


class Transcribe(Protocol):
    def __call__(
        self, samples: NDArray[np.float32], *, beam_size: int | None = None
    ) -> Iterator[SpeechSegment]:
        """The segments of a clip, float32 (n,) at 16 kHz."""
        ...


class NewText(NamedTuple):
    """Words that have become certain, and the segments of a window that has become complete."""

    words: list[str]
    segments: Sequence[TranscriptPiece] = ()


class SoundListener:
    """Listens to one stream of sound.

    Args:
        transcribe: Transcribes a part of it.
        sample_rate: Of the sound, in Hz.
        max_seconds: The longest stream that is accepted.
        clock: The time in seconds.

    Attributes:
        segments: Those of the complete windows, in times of the stream.
    """

    def __init__(
        self,
        transcribe: Transcribe,
        sample_rate: int,
        max_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import soxr

        self._transcribe = transcribe
        self._resampler = soxr.ResampleStream(sample_rate, SAMPLE_RATE, 1, dtype="float32")
        self._max_seconds = max_seconds
        self._clock = clock
        self._cutter = WindowCutter()
        self._samples = 0
        # The next look begins at a sample, after the sentences that are certain. The last look: up to which
        # sample, its words and those of them that were sent, when it ended, and how long it took.
        self._from, self._until = 0, 0
        self._seen: list[str] = []
        self._sent: list[str] = []
        self._ended, self._took = clock(), 0.0
        # What was sent of the window that is not complete.
        self._sent_of_window: list[str] = []
        self.segments: list[TranscriptPiece] = []

    @property
    def seconds(self) -> float:
        """How much sound has come."""
        return self._samples / SAMPLE_RATE

    def add(self, samples: NDArray[np.float32], *, more_waits: bool = False) -> Iterator[NewText]:
        """Yields what is new with the next samples, (n,) float32.

        Args:
            more_waits: True if further samples have come already.

        Raises:
            RequestError: There is too much sound.
        """
        yield from self._add(self._resampler.resample_chunk(samples))
        # A stream that is behind drops looks, not sound. And at most half of the time goes to looks.
        is_free = not more_waits and self._clock() - self._ended >= self._took
        if is_free and self._samples - max(self._from, self._until) >= _STEP:
            yield NewText(self._look())

    def end(self, nothing: NDArray[np.float32]) -> Iterator[NewText]:
        """Yields what is new once all samples have come.

        Args:
            nothing: No samples.
        """
        yield from self._add(self._resampler.resample_chunk(nothing, last=True))
        yield from map(self._complete, self._cutter.rest())

    def _add(self, block: NDArray[np.float32]) -> Iterator[NewText]:
        self._samples += len(block)
        if self.seconds > self._max_seconds:
            raise RequestError(
                f"more than {self._max_seconds:g} s of sound came; begin another stream",
                param="audio",
                code="audio_too_long",
            )
        yield from map(self._complete, self._cutter.add(block))

    def _look(self) -> list[str]:
        began = self._clock()
        heard = list(self._transcribe(self._cutter.open[self._from - self._cutter.start :], beam_size=1))
        texts = [segment.text.split() for segment in heard]
        words = [word for text in texts for word in text]
        agreed = _agreed(self._seen, words)
        certain = words[_after(self._sent, words) : agreed]
        self._sent_of_window += certain
        # Whole segments that are certain need no further look, but for the last, which may go on.
        done, end = 0, 0.0
        for segment, text in zip(heard[:-1], texts, strict=False):
            if done + len(text) > agreed:
                break
            done, end = done + len(text), segment.end
        self._until = self._samples
        self._from += round(end * SAMPLE_RATE)
        self._seen, self._sent = words[done:], words[done : max(done, agreed)]
        self._ended = self._clock()
        self._took = self._ended - began
        return certain

    def _complete(self, window: Window) -> NewText:
        start = window.start / SAMPLE_RATE
        segments = [transcript_piece(segment, start) for segment in self._transcribe(window.samples)]
        words = _words(segment["text"] for segment in segments)
        sent, end = self._sent_of_window, window.start + len(window.samples)
        if self._from > end:
            # Some of what was sent is of the next window.
            self._sent_of_window = sent[_after(words, sent) :]
            certain = []
        else:
            certain = words[_after(sent, words) :]
            self._from, self._seen, self._sent, self._sent_of_window = end, [], [], []
        self.segments += segments
        return NewText(certain, segments)


def transcript_piece(heard: SpeechSegment, start: float) -> TranscriptPiece:
    """A segment of the window that begins ``start`` seconds after the recording."""
    # Its fields are those of a TranscriptPiece, but for ``seek``.
    return cast(TranscriptPiece, asdict(heard.after(start)) | {"seek": round(start * 100)})


def _words(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in text.split()]


def _agreed(before: Sequence[str], now: Sequence[str]) -> int:
    """How many first words are the same in both."""
    same = (one == other for one, other in zip(map(_bare, before), map(_bare, now), strict=False))
    return next((count for count, is_same in enumerate(same) if not is_same), min(len(before), len(now)))


def _after(said: Sequence[str], words: Sequence[str]) -> int:
    """How many first words of ``words`` say what ``said`` says, where some may be heard otherwise."""
    matcher = SequenceMatcher(None, [*map(_bare, said)], [*map(_bare, words)], autojunk=False)
    *matches, _ = matcher.get_matching_blocks()
    last = matches[-1] if matches else None
    matched, place = (0, 0) if last is None else (last.a + last.size, last.b + last.size)
    return min(len(words), place + len(said) - matched)


def _bare(word: str) -> str:
    """A word without case and punctuation."""
    return "".join(filter(str.isalnum, word.lower())) or word
