"""The transcribe stage: a recording to its text, window by window."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import SamplingRow
from sglang_omni.models.recordings.growing_text import GrowingText
from sglang_omni.models.recordings.mel import MelFilters
from sglang_omni.models.recordings.recording import SoundReader
from sglang_omni.models.whisper.components.checkpoint import FRAMES_PER_POSITION, WhisperCheckpoint
from sglang_omni.models.whisper.components.fallback import compression_ratio, has_no_speech, is_doubtful
from sglang_omni.models.whisper.components.log_mel import HeardWindow, MelReader
from sglang_omni.models.whisper.components.segments import SECONDS_PER_FRAME, Cut, cut_window, pairs
from sglang_omni.models.whisper.components.steps import (
    Alignment,
    Beginning,
    Hearing,
    LanguageGuess,
    NextToken,
    WhisperModel,
    WindowReading,
)
from sglang_omni.models.whisper.components.word_times import split_words, token_times
from sglang_omni.models.whisper.memory import TEXTS_ALIGNED_AT_ONCE
from sglang_omni.models.whisper.preprocess import WhisperInput
from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import SpokenWord, TextChunk, Transcript, TranscriptPiece
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
        sampling: How they are chosen.
        logprob: The sum over ``tokens`` and the end.
        num_chosen: How many these are.
        no_speech: The probability that there is no speech in the window.
        sent: Tokens whose text is out.
        times: The second of the window up to which each token is heard; empty if no times are wanted.
    """

    sampling: RequestSampling
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    num_chosen: int = 0
    no_speech: float = 0.0
    sent: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """True if the model ended the text, and no limit did."""
        return self.num_chosen > len(self.tokens)

    @property
    def mean_logprob(self) -> float:
        return self.logprob / max(1, self.num_chosen)


class WhisperSession(StreamSession):
    """One recording: windows of 30 s, each from where the last one's segments ended.

    A window whose text is doubtful is written again, at the next of several temperatures, so that its text
    goes out when it is settled. At the last one, text goes out with each token as long as it is certain that
    it stays: a window ends with words that the next one hears again if it cuts a sentence, so from the second
    segment of a window on, a segment's text goes out at its end.

    Args:
        temperatures: Those of requests that name none, in the order in which they are tried.
    """

    def __init__(
        self,
        checkpoint: WhisperCheckpoint,
        model: WhisperModel,
        tokenizer: Tokenizer,
        filters: MelFilters,
        readers: Executor,
        limits: WhisperLimits,
        temperatures: Sequence[float],
    ) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._tokenizer = tokenizer
        self._filters = filters
        self._readers = readers
        self._limits = limits
        self._temperatures = temperatures
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
        seed = data["seed"]
        if data["temperature"] > 0:
            self._temperatures = (data["temperature"],)
        elif seed is None:
            # The likeliest text is always the same, also where one at a higher temperature takes its place.
            seed = 0
        self._random = random.Random(seed)
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
        written = yield from self._settled(prompt, len(data["before"]))
        if self._has_no_speech(written):
            return num_frames
        if data["word_timestamps"] and self._words(written.tokens):
            yield from self._align(prompt, written, num_frames)
        window = cut_window(written.tokens, num_frames, self._times_begin)
        piece = self._new_text(written, sum(len(cut.tokens) for cut in window.cuts))
        segments, first = [], 0
        for cut in window.cuts:
            segment = self._segment(cut, written, first, at, language)
            first += len(cut.tokens)
            if segment is not None:
                segments.append(segment)
        self._segments += segments
        if piece or segments:
            yield TextChunk(modality="text", text=piece, segments=segments)
        return window.num_frames or num_frames

    def _settled(self, prompt: list[int], start: int) -> Generator[Any, None, _Written]:
        """Writes a window, and again at each higher temperature while its text is doubtful.

        Args:
            start: The index of the start token in ``prompt``.
        """
        *earlier, last = self._temperatures
        for temperature in earlier:
            written = _Written(RequestSampling(temperature=temperature))
            yield from self._write(prompt, start, written, send=False)
            if self._has_no_speech(written) or not is_doubtful(
                self._plain(written.tokens), written.mean_logprob, self._checkpoint.logprob_threshold
            ):
                return written
        written = _Written(RequestSampling(temperature=last))
        yield from self._write(prompt, start, written, send=True)
        return written

    def _write(
        self, prompt: list[int], start: int, written: _Written, *, send: bool
    ) -> Generator[Any, None, None]:
        """Writes a window once.

        Args:
            send: True if the text that is certain goes out with each token.
        """
        for _ in range(self._room(prompt)):
            step = self._next_step(prompt, start, written)
            yield step
            if isinstance(step, Beginning):
                written.no_speech = step.no_speech
            assert step.chosen is not None
            written.logprob += step.chosen.logprob
            written.num_chosen += 1
            if step.chosen.token == self._checkpoint.tokens.end:
                break
            written.tokens.append(step.chosen.token)
            if send and written.no_speech <= self._checkpoint.no_speech_threshold:
                piece = self._new_text(written, self._certain(written.tokens))
                if piece:
                    yield TextChunk(modality="text", text=piece)

    def _has_no_speech(self, written: _Written) -> bool:
        checkpoint = self._checkpoint
        return has_no_speech(
            written.no_speech,
            written.mean_logprob,
            checkpoint.no_speech_threshold,
            checkpoint.logprob_threshold,
        )

    def _align(self, prompt: list[int], written: _Written, num_frames: int) -> Generator[Any, None, None]:
        """Finds the times of a window's tokens."""
        # As in the reference, which has no attention of a token that nothing was written after.
        seen = written.tokens if written.has_ended else written.tokens[:-1]
        alignment = Alignment("alignment", TEXTS_ALIGNED_AT_ONCE, self._slot, [*prompt, *seen], len(prompt))
        yield alignment
        assert alignment.attention is not None
        found = self._readers.submit(
            token_times,
            alignment.attention,
            num_frames // FRAMES_PER_POSITION,
            self._checkpoint.median_filter_width,
        )
        yield WindowReading(found)
        written.times = found.result()
        if not written.has_ended:
            written.times.append(written.times[-1] if written.times else 0.0)

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
        allowed, draw = self._model.rules.allowed(written.tokens), self._draw(written.sampling)
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

    def _draw(self, sampling: RequestSampling) -> SamplingRow:
        return SamplingRow(sampling, self._random.random() if sampling.temperature > 0 else 0.0)

    def _certain(self, tokens: list[int]) -> int:
        """How many of a window's first tokens stay, whatever follows."""
        borders = pairs(tokens, self._times_begin)
        return borders[-1] if borders else len(tokens)

    def _new_text(self, written: _Written, count: int) -> str:
        """The new text of a window's first ``count`` tokens."""
        new = written.tokens[written.sent : count]
        written.sent = max(written.sent, count)
        return self._text.add(self._words(new))

    def _words(self, tokens: list[int]) -> list[int]:
        """The tokens that have a text."""
        return [token for token in tokens if token < self._checkpoint.tokens.end]

    def _plain(self, tokens: list[int]) -> str:
        """The text of tokens without times, and without white space at its ends."""
        return self._tokenizer.decode(self._words(tokens)).strip()

    def _segment(
        self, cut: Cut, written: _Written, first: int, at: int, language: str | None
    ) -> TranscriptPiece | None:
        """A cut as the caller gets it; None if it has no text.

        Args:
            first: The index of its first token among those of the window.
        """
        text = self._plain(cut.tokens)
        if not text:
            return None
        offset = at * SECONDS_PER_FRAME
        piece = TranscriptPiece(
            seek=at,
            start=round(offset + cut.start, 3),
            end=round(offset + cut.end, 3),
            text=text,
            tokens=cut.tokens,
            temperature=written.sampling.temperature,
            avg_logprob=written.mean_logprob,
            compression_ratio=compression_ratio(self._plain(written.tokens)),
            no_speech_prob=written.no_speech,
        )
        if written.times:
            piece["words"] = self._word_times(cut, written.times, first, offset, language)
        return piece

    def _word_times(
        self, cut: Cut, times: list[float], first: int, offset: float, language: str | None
    ) -> list[SpokenWord]:
        """The words of a cut with their times in the recording, of which the window begins at ``offset``."""
        end = self._checkpoint.tokens.end
        spoken = [index for index, token in enumerate(cut.tokens, first) if token < end]
        words = split_words(self._words(cut.tokens), self._tokenizer.decode, language)
        found: list[SpokenWord] = []
        for word in words:
            before, last = spoken[word.indices[0]] - 1, spoken[word.indices[-1]]
            start = times[before] if before >= 0 else 0.0
            if text := word.text.strip():
                begins, ends = round(offset + start, 2), round(offset + times[last], 2)
                found.append(SpokenWord(word=text, start=begins, end=ends))
        return found
