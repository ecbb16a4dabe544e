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

_STAGE = ("max_running_requests", "timestamps", "windows_at_once", "fallback")


class Piece(NamedTuple):
    """A segment with a text.

    Attributes:
        token_times: As transformers tells them, in seconds of the recording; empty if that was not wanted.
        is_first: True for the first segment of a window.
    """

    start: float
    end: float
    tokens: list[int]
    token_times: list[float]
    is_first: bool

    @property
    def reported(self) -> tuple[float, float, list[int]]:
        """What a segment of the answer tells of it, too."""
        return self.start, self.end, self.tokens


@dataclass
class WhisperTwins:
    """A checkpoint's stages, and transformers' classes on the same files."""

    path: Path

    def __post_init__(self) -> None:
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model = WhisperForConditionalGeneration.from_pretrained(self.path, dtype="float32").eval()
        self.extractor = WhisperFeatureExtractor.from_pretrained(self.path)
        self.tokenizer = load_tokenizer(self.path)

    def features(self, samples: NDArray[np.float32]) -> Any:
        """(1, num_mel_bins, frames): with silence up to a whole window, or those of a longer recording."""
        return self._extracted(samples)["input_features"]

    def _extracted(self, samples: NDArray[np.float32], **options: Any) -> Any:
        padding = "max_length" if len(samples) <= self.extractor.n_samples else "longest"
        return self.extractor(
            [samples],
            return_tensors="pt",
            truncation=False,
            padding=padding,
            sampling_rate=RATE,
            **options,
        )

    def expected(self, samples: NDArray[np.float32], **options: Any) -> list[tuple[float, float, list[int]]]:
        """The segments of ``generate`` that say something."""
        return [piece.reported for piece in self.written(samples, **options) if self.text(piece.tokens)]

    def written(self, samples: NDArray[np.float32], **options: Any) -> list[Piece]:
        """All segments of ``generate``, those of nothing but white space too.

        It goes on in the silence behind a recording of less than a window, which is left out here; and says
        that a segment without an end goes on to the window's, which is the recording's here.
        """
        inputs = self._extracted(samples, return_attention_mask=True)
        answer = self.model.generate(**inputs, return_timestamps=True, return_segments=True, **options)
        begin = self.model.generation_config.no_timestamps_token_id + 1
        num_frames = int(inputs["attention_mask"].sum())
        pieces: list[Piece] = []
        at, before = 0, 0
        for each in answer["segments"][0]:
            tokens, start, end = each["tokens"].tolist(), float(each["start"]), float(each["end"])
            # Within a window, the tokens of a segment follow those of the one before.
            if is_first := not pieces or each["idxs"][0] != before:
                at = round(100 * (start - 0.02 * (tokens[0] - begin)))
            before = each["idxs"][1]
            if at >= num_frames:
                break
            times = [token for token in tokens if token >= begin]
            if is_first and times == [begin]:
                end = 0.01 * at + 0.02 * ((num_frames - at) // 2)
            reported = each["token_timestamps"].tolist() if "token_timestamps" in each else []
            pieces.append(Piece(round(start, 3), round(end, 3), tokens, reported, is_first))
        return pieces

    def text(self, tokens: list[int]) -> str:
        """Without times, and without white space at the ends."""
        end = self.model.generation_config.eos_token_id
        text: str = self.tokenizer.decode([token for token in tokens if token < end])
        return text.strip()

    def ours(self, sounds: list[NDArray[np.float32]], **options: Any) -> list[Transcribed]:
        """Answers of the stages. Without fallback, unless that is wanted: what is drawn is not comparable."""
        stage: dict[str, Any] = {"fallback": False}
        stage |= {name: options.pop(name) for name in list(options) if name in _STAGE}
        checkpoint = WhisperCheckpoint.from_dir(self.path)
        preprocess = WhisperPreprocessor(checkpoint, self.tokenizer, max_bytes=1 << 26)
        scheduler = create_transcribe(str(self.path), num_threads=1, **stage)
        return transcribed(preprocess, scheduler, [recording(sound) for sound in sounds], **options)
