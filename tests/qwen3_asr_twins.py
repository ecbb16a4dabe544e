"""A tiny Qwen3-ASR, and what transformers' classes say of the same recordings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from transcription_runs import RATE, Transcribed, recording, tones, transcribed

from sglang_omni.models.qwen3_asr.preprocess import Qwen3ASRPreprocessor
from sglang_omni.models.qwen3_asr.stages import create_transcribe
from sglang_omni.models.recordings.pieces import QuietPieces
from sglang_omni.models.recordings.recording import SoundReader
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.proto import OmniRequest, StagePayload

# Limits of an answer's tokens, and of a piece.
MOST = 16
PIECE_SECONDS = 3.0


def without_loops(text: str) -> str:
    """What the authors' ``detect_and_fix_repetitions`` leaves of a text, by its definition."""
    runs = ["".join(run) for _, run in groupby(text)]
    text = "".join(run[0] if len(run) > 20 else run for run in runs)
    fixed, at = "", 0
    while len(text) - at >= 40:
        times = [n for n in range(1, 21) if text[at : at + 20 * n] == 20 * text[at : at + n]]
        unit = text[at : at + (times[0] if times else 1)]
        fixed, at = fixed + unit, at + len(unit)
        while times and text[at : at + len(unit)] == unit:
            at += len(unit)
    return fixed + text[at:]


@dataclass
class Qwen3ASRTwins:
    """A checkpoint's stages, and transformers' classes on the same files.

    Attributes:
        path: In the layout of transformers.
    """

    path: Path

    def __post_init__(self) -> None:
        from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor
        from transformers.models.qwen3_asr.modeling_qwen3_asr import Qwen3ASRForConditionalGeneration

        self.model = Qwen3ASRForConditionalGeneration.from_pretrained(self.path).eval()
        self.extractor = Qwen3ASRFeatureExtractor.from_pretrained(self.path)
        self.tokenizer = load_tokenizer(self.path)

    def preprocessed(self, task: str = "transcription", **params: Any) -> dict[str, Any]:
        request = OmniRequest({"audio": recording(tones(0, 2.0))}, params, {"task": task})
        return Qwen3ASRPreprocessor(self.tokenizer, max_bytes=1 << 26)(StagePayload("r", request, None)).data

    def ours(self, sounds: Any, path: Path | None = None, **options: Any) -> list[Transcribed]:
        stage = {
            name: options.pop(name)
            for name in list(options)
            if name in ("engine", "max_running_requests", "overlap_schedule")
        }
        scheduler = create_transcribe(
            str(path or self.path), num_threads=1, piece_seconds=PIECE_SECONDS, max_total_tokens=4096, **stage
        )
        preprocess = Qwen3ASRPreprocessor(self.tokenizer, max_bytes=1 << 26)
        options = {"max_new_tokens": MOST, **options}
        return transcribed(preprocess, scheduler, [recording(sound) for sound in sounds], **options)

    def expected(self, sound: Any, most: int = MOST, **params: Any) -> list[list[int]]:
        """The tokens of each piece, ``most`` of them."""
        import torch

        prompt = self.preprocessed(**params)
        reader = SoundReader(recording(sound), max_seconds=600, decode_seconds=60)
        pieces = QuietPieces(reader, round(PIECE_SECONDS * RATE))
        found = []
        while (piece := pieces.next()) is not None:
            heard = self.extractor(
                [piece.samples], padding=True, return_attention_mask=True, sampling_rate=RATE
            )
            frames = int(heard["attention_mask"].sum())
            chunks, rest = divmod(frames, 100)
            rows = 13 * chunks + ((rest - 1) // 8 + 1 if rest else 0)
            ids = [*prompt["before"], *[self.model.config.audio_token_id] * rows, *prompt["after"]]
            answer = self.model.generate(
                input_ids=torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                input_features=heard["input_features"],
                input_features_mask=heard["attention_mask"],
                max_new_tokens=most,
                do_sample=False,
            )
            found.append(answer[0, len(ids) :].tolist())
        return found
