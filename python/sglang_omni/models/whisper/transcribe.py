"""The transcribe stage: a recording to its text, window by window."""

from __future__ import annotations

import random
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import SamplingRow
from sglang_omni.models.transcription.growing_text import GrowingText
from sglang_omni.models.transcription.mel import MelFilters
from sglang_omni.models.transcription.recording import SoundReader
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.components.log_mel import HeardWindow, MelReader
from sglang_omni.models.whisper.components.segments import SECONDS_PER_FRAME, cut_window, pairs
from sglang_omni.models.whisper.components.steps import (
    Beginning,
    Hearing,
    LanguageGuess,
    NextToken,
    WhisperModel,
    WindowReading,
)
from sglang_omni.models.whisper.preprocess import WhisperInput
from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import TextChunk, Transcript, TranscriptPiece
from sglang_omni.scheduling.stream_scheduler import StreamSession

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class WhisperLimits:
    """
    Attributes:
        seconds: Length of a recording.
        decode_seconds: Time to decode one window of it.
        windows_at_once: Windows that are heard in one batch.
    """

    seconds: float = 14_400.0
    decode_seconds: float = 30.0
    windows_at_once: int = 8


@dataclass
class _Written:
    """What a window's tokens are, apart from the prompt and the end.

    Attributes:
        logprob: The sum over ``tokens`` and the end.
        num_chosen: How many these are.
        no_speech: The probability that there is no speech in the window.
        told: Tokens whose text is out.
    """

    tokens: list[int]
    logprob: float = 0.0
    num_chosen: int = 0
    no_speech: float = 0.0
    told: int = 0

    @property
    def mean_logprob(self) -> float:
        return self.logprob / max(1, self.num_chosen)


class WhisperSession(StreamSession):
    """One recording: windows of 30 s, each from where the last one's segments ended.

    Text goes out with each token as long as it is certain that it stays. A window ends with words that the
    next one hears again if it cuts a sentence, so from the second segment of a window on, a segment's text
    goes out when its end is told.
    """

    def __init__(
        self,
        checkpoint: WhisperCheckpoint,
        model: WhisperModel,
        tokenizer: Tokenizer,
        filters: MelFilters,
        readers: Executor,
        limits: WhisperLimits,
    ) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._tokenizer = tokenizer
        self._filters = filters
        self._readers = readers
        self._limits = limits
        self._slot = model.cache.acquire()
        self._text = GrowingText(tokenizer)
        self._segments: list[TranscriptPiece] = []
        begin = checkpoint.tokens.timestamps_begin if model.rules.writes_times else None
        # Beyond all tokens if no times are written.
        self._times_begin = checkpoint.shape.vocab_size if begin is None else begin
        self._result: Transcript = {"text": ""}

    def close(self) -> None:
        self._model.cache.release(self._slot)

    def result(self) -> dict[str, Any]:
        return {**self._result}

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        data: WhisperInput = payload.data
        sound = SoundReader(
            bytes(data["audio"]),
            max_seconds=self._limits.seconds,
            decode_seconds=self._limits.decode_seconds,
        )
        reader = MelReader(sound, self._filters, self._checkpoint.shape.window_frames)
        self._sampling = RequestSampling(temperature=data["temperature"])
        self._random = random.Random(data["seed"])
        language, at = data["language"], 0
        while True:
            heard: Future[HeardWindow] = self._readers.submit(reader.window, at)
            yield WindowReading(heard)
            window = heard.result()
            if window.num_frames == 0:
                break
            if window.is_silent:
                at += window.num_frames
                continue
            yield Hearing(self._slot, window.features, self._limits.windows_at_once)
            # The next window is decoded while this one is written.
            ahead = self._readers.submit(reader.read_ahead, at + window.num_frames)
            if language is None and self._checkpoint.multilingual:
                guess = LanguageGuess(self._slot, self._limits.windows_at_once)
                yield guess
                language = guess.language
            at += yield from self._window(data, language, at, window.num_frames)
            yield WindowReading(ahead)
            ahead.result()
        last = self._text.finish()
        if last:
            yield TextChunk(modality="text", text=last)
        self._result = Transcript(
            text=self._text.text,
            language=language or ("" if self._checkpoint.multilingual else "en"),
            duration=reader.seconds,
            segments=self._segments,
        )

    def _window(
        self, data: WhisperInput, language: str | None, at: int, num_frames: int
    ) -> Generator[Any, None, int]:
        """Writes the window from frame ``at`` on. Returns the frames up to the next window."""
        prompt = [*data["before"], *self._start_tokens(language, translate=data["translate"])]
        written = _Written([])
        for _ in range(self._room(prompt)):
            step = self._next_step(prompt, len(data["before"]), written)
            yield step
            if isinstance(step, Beginning):
                written.no_speech = step.no_speech
            assert step.chosen is not None
            written.logprob += step.chosen.logprob
            written.num_chosen += 1
            if step.chosen.token == self._checkpoint.tokens.end:
                break
            written.tokens.append(step.chosen.token)
            if written.no_speech <= self._checkpoint.no_speech_threshold:
                piece = self._tell(written, self._certain(written.tokens))
                if piece:
                    yield TextChunk(modality="text", text=piece)
        if (
            written.no_speech > self._checkpoint.no_speech_threshold
            and written.mean_logprob < self._checkpoint.logprob_threshold
        ):
            return num_frames
        window = cut_window(written.tokens, num_frames, self._times_begin)
        piece = self._tell(written, sum(len(cut.tokens) for cut in window.cuts))
        segments = [segment for cut in window.cuts if (segment := self._segment(cut, written, at))]
        self._segments += segments
        if piece or segments:
            yield TextChunk(modality="text", text=piece, segments=segments)
        return window.num_frames or num_frames

    def _room(self, prompt: list[int]) -> int:
        """The most tokens of a window after ``prompt``."""
        room = self._checkpoint.max_length - len(prompt)
        limit = self._checkpoint.max_new_tokens
        return room if limit is None else min(room, limit)

    def _next_step(self, prompt: list[int], start: int, written: _Written) -> Beginning | NextToken:
        """The work that chooses the next token.

        Args:
            start: The index of the start token in ``prompt``.
        """
        size = self._model.cache.num_slots
        allowed, draw = self._model.rules.allowed(written.tokens), self._draw()
        if not written.tokens:
            return Beginning("begin", size, self._slot, prompt, start, allowed, draw)
        position = len(prompt) + len(written.tokens) - 1
        return NextToken("step", size, self._slot, written.tokens[-1], position, allowed, draw)

    def _start_tokens(self, language: str | None, *, translate: bool) -> list[int]:
        tokens = self._checkpoint.tokens
        start = [tokens.start]
        if self._checkpoint.multilingual:
            assert language is not None
            start += [tokens.languages[language], tokens.tasks["translate" if translate else "transcribe"]]
        if not self._model.rules.writes_times and tokens.no_timestamps is not None:
            start.append(tokens.no_timestamps)
        return start

    def _draw(self) -> SamplingRow:
        drawn = self._sampling.temperature > 0
        return SamplingRow(self._sampling, self._random.random() if drawn else 0.0)

    def _certain(self, tokens: list[int]) -> int:
        """How many of a window's first tokens stay, whatever follows."""
        borders = pairs(tokens, self._times_begin)
        return borders[-1] if borders else len(tokens)

    def _tell(self, written: _Written, count: int) -> str:
        """The new text of a window's first ``count`` tokens."""
        new = written.tokens[written.told : count]
        written.told = max(written.told, count)
        return self._text.add(self._words(new))

    def _words(self, tokens: list[int]) -> list[int]:
        """The tokens that have a text."""
        return [token for token in tokens if token < self._checkpoint.tokens.end]

    def _segment(self, cut: Any, written: _Written, at: int) -> TranscriptPiece | None:
        """A cut as the caller gets it; None if it has no text."""
        text = self._tokenizer.decode(self._words(cut.tokens)).strip()
        if not text:
            return None
        encoded, offset = text.encode(), at * SECONDS_PER_FRAME
        return TranscriptPiece(
            seek=at,
            start=round(offset + cut.start, 3),
            end=round(offset + cut.end, 3),
            text=text,
            tokens=cut.tokens,
            temperature=self._sampling.temperature,
            avg_logprob=written.mean_logprob,
            compression_ratio=len(encoded) / len(zlib.compress(encoded)),
            no_speech_prob=written.no_speech,
        )
