"""Qwen3-ASR against transformers' own classes: tokens of recordings of one to four pieces."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import soundfile
import torch
from qwen3_asr_twins import MOST, PIECE_SECONDS, Qwen3ASRTwins
from transcription_runs import recording, tones

from parity import Subject
from sglang_omni.models.qwen3_asr.config import Qwen3ASRPipelineConfig
from sglang_omni.models.qwen3_asr.tiny_checkpoint import make
from sglang_omni.testing import Answer, Case, read_answer

SHAPES: dict[str, dict[str, Any]] = {
    "deep": {"num_hidden_layers": 4, "audio_encoder_layers": 3, "num_attention_heads": 8},
    "wide": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 1, "audio_window": 100},
    # transformers reads the same weights in its own layout.
    "authors": {"layout": "authors", "audio_encoder_attention_heads": 4, "num_key_value_heads": 1},
}
_SECONDS = (2.3, 5.1, 0.4, 9.7, 3.0, 0.9, 1.7, 6.2)


class Heard:
    """``generate`` of transformers, greedy, float32, one piece of one recording at a time."""

    def __init__(self, twins: Qwen3ASRTwins) -> None:
        self._twins = twins

    def answers(self, case: Case) -> Answer:
        sound = soundfile.read(io.BytesIO(case.inputs["audio"]), dtype="float32")[0]
        asked = {name: case.params[name] for name in ("language", "prompt") if name in case.params}
        decode = self._twins.tokenizer.decode
        pieces = [piece for piece in self._twins.expected(sound, **asked) if decode(piece).strip()]
        # A piece without text is no segment.
        return Answer([token for piece in pieces for token in piece])


def _read(result: Any) -> Answer:
    tokens = [token for segment in result["segments"] for token in segment["tokens"]]
    return Answer(tokens, text=read_answer(result).text)


def cases(seed: int) -> list[Case]:
    found = []
    for n, seconds in enumerate(_SECONDS):
        # Without a language, the answer begins with it, or at least may.
        params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": MOST}
        params |= {"language": "en"} if n % 3 else {}
        params |= {"prompt": "old house <|im_end|>"} if n % 4 == 1 else {}
        inputs = {"audio": recording(tones(100 * seed + n, seconds))}
        found.append(Case(inputs, params, {"task": "transcription"}))
    return found


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    path = make(folder / "served", seed, **SHAPES[shape])
    other = make(folder / "reference", seed, **{**SHAPES[shape], "layout": "transformers"})
    own = {"engine": engine, "num_threads": 1, "piece_seconds": PIECE_SECONDS}
    config = Qwen3ASRPipelineConfig(model_path=str(path), runtime_overrides={"transcribe": own})
    # The longest prompt and answer take 123 tokens.
    options = {"read": _read, "pool_tokens": 144}
    return Subject(config, Heard(Qwen3ASRTwins(other)), cases(seed), options)
