"""A tiny Whisper, and what transformers' classes say of the same recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transcription_runs import RATE, Transcribed, recording, transcribed

from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.preprocess import WhisperPreprocessor
from sglang_omni.models.whisper.stages import create_transcribe
from sglang_omni.preprocessing.text import load_tokenizer

_STAGE = ("max_running_requests", "timestamps", "windows_at_once")


class Piece(NamedTuple):
    """A segment with a text."""

    start: float
    end: float
    tokens: list[int]


@dataclass
class WhisperTwins:
    """A checkpoint's stages, and transformers' classes on the same files."""

    path: Path

    def __post_init__(self) -> None:
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model = WhisperForConditionalGeneration.from_pretrained(self.path).eval()
        self.extractor = WhisperFeatureExtractor.from_pretrained(self.path)
        self.tokenizer = load_tokenizer(self.path)

    def features(self, samples: NDArray[np.float32]) -> Any:
        """(1, num_mel_bins, frames), without silence at the end."""
        return self.extractor(
            [samples], return_tensors="pt", truncation=False, padding="longest", sampling_rate=RATE
        )["input_features"]

    def expected(self, samples: NDArray[np.float32], **options: Any) -> list[Piece]:
        """The segments of ``generate`` that say something."""
        return [piece for piece in self.written(samples, **options) if self.text(piece.tokens)]

    def written(self, samples: NDArray[np.float32], **options: Any) -> list[Piece]:
        """All segments of ``generate``, those of nothing but white space too."""
        answer = self.model.generate(
            self.features(samples), return_timestamps=True, return_segments=True, **options
        )
        return [
            Piece(round(float(each["start"]), 3), round(float(each["end"]), 3), each["tokens"].tolist())
            for each in answer["segments"][0]
        ]

    def text(self, tokens: list[int]) -> str:
        """Without times, and without white space at the ends."""
        end = self.model.generation_config.eos_token_id
        text: str = self.tokenizer.decode([token for token in tokens if token < end])
        return text.strip()

    def ours(self, sounds: list[NDArray[np.float32]], **options: Any) -> list[Transcribed]:
        stage = {name: options.pop(name) for name in list(options) if name in _STAGE}
        checkpoint = WhisperCheckpoint.from_dir(self.path)
        preprocess = WhisperPreprocessor(checkpoint, self.tokenizer, max_bytes=1 << 26)
        scheduler = create_transcribe(str(self.path), num_threads=1, **stage)
        return transcribed(preprocess, scheduler, [recording(sound) for sound in sounds], **options)
