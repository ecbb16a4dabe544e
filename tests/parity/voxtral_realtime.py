"""Voxtral Realtime against transformers' own classes: recordings shorter and longer than its windows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import soundfile
import torch
from transcription_runs import recording
from voxtral_twins import VoxtralTwins, quiet_tones

from parity import Subject
from sglang_omni.models.voxtral_realtime.config import VoxtralRealtimePipelineConfig
from sglang_omni.models.voxtral_realtime.tiny_checkpoint import make
from sglang_omni.testing import Answer, Case, read_answer

# SGLang's engine adds no rows to embeddings.
ENGINES = ("omni",)
# transformers' processor reads tekken.json with it.
REFERENCE_NEEDS = ("mistral_common",)
SHAPES: dict[str, dict[str, Any]] = {
    "deep": {"num_hidden_layers": 4, "audio_num_hidden_layers": 3, "num_attention_heads": 8},
    "wide": {"hidden_size": 96, "num_key_value_heads": 1, "audio_hidden_size": 48, "audio_head_dim": 8},
    "published windows": {"audio_sliding_window": 750, "sliding_window": 8192, "num_mel_bins": 80},
}
_SECONDS = (2.3, 0.1, 5.1, 0.4, 9.7, 3.0, 0.95, 6.2)


class Heard:
    """``generate`` of transformers, greedy, float32, one recording at a time."""

    def __init__(self, twins: VoxtralTwins) -> None:
        self._twins = twins

    def answers(self, case: Case) -> Answer:
        sound = soundfile.read(io.BytesIO(case.inputs["audio"]), dtype="float32")[0]
        tokens = self._twins.expected(sound)
        text = self._twins.text(tokens)
        # White space is no segment.
        return Answer(tokens if text else [], text=text)


def _read(result: Any) -> Answer:
    tokens = [token for segment in result["segments"] for token in segment["tokens"]]
    return Answer(tokens, text=read_answer(result).text)


def cases(seed: int) -> list[Case]:
    files = [recording(quiet_tones(100 * seed + n, seconds)) for n, seconds in enumerate(_SECONDS)]
    params, task = {"temperature": 0.0}, {"task": "transcription"}
    return [Case({"audio": file}, params, task) for file in files]


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    path = make(folder / "served", seed, **SHAPES[shape])
    own = {"num_threads": 1}
    config = VoxtralRealtimePipelineConfig(model_path=str(path), runtime_overrides={"transcribe": own})
    # The longest recording takes 172 tokens.
    options = {"read": _read, "pool_tokens": 192}
    return Subject(config, Heard(VoxtralTwins(path)), cases(seed), options)
