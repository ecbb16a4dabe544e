"""Higgs Audio v2 against transformers: codes and samples of texts, in voices, scenes and parts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import soundfile
import torch
from higgs_oracle import RATE, HiggsOracle, SaidBefore
from sample_media import sound
from spoken_parts import frames_of_parts

from parity import Subject
from sglang_omni.models.higgs_audio_v2.config import HiggsAudioPipelineConfig
from sglang_omni.testing import Answer, Case

# SGLang has no layers with a second MLP.
ENGINES = ("omni",)
# transformers' class of the codec.
REFERENCE_NEEDS = ("torchaudio",)
SHAPES: dict[str, dict[str, int]] = {
    "deep": {"layers": 4, "heads": 2, "kv_heads": 1},
    "many codebooks": {"hidden_size": 48, "heads": 6, "kv_heads": 6, "codebooks": 8, "codes": 128},
}
_TASK = {"task": "speech"}
_SAID = "This is how I sound"
_PART_BYTES = 40
_PARTS = ["This is the first. And here the second.", "Is it a third? It is a fourth.", "And the end."]


class HiggsSpoken:
    """``generate`` of transformers, greedy, float32, one text at a time."""

    def __init__(self, oracle: HiggsOracle) -> None:
        self._oracle = oracle

    def answers(self, case: Case) -> Answer:
        text, limit = case.inputs["text"], case.params["max_new_tokens"]
        if text == " ".join(_PARTS):
            frames = frames_of_parts(self._oracle, _PARTS, limit)
            return Answer(codes=frames, samples=self._oracle.decode(frames).numpy())
        heard, scene = [], {}
        if (recorded := case.params.get("ref_audio")) is not None:
            samples = soundfile.read(io.BytesIO(recorded), dtype="float32")[0]
            heard = [SaidBefore(case.params["ref_text"], samples)]
        if "instructions" in case.params:
            scene["scene"] = case.params["instructions"]
        said = self._oracle.speak(text, limit, heard, **scene)
        return Answer(codes=said.frames, samples=said.samples.numpy())


def cases(seed: int) -> list[Case]:
    found = [Case({"text": " ".join(_PARTS)}, {"temperature": 0.0, "max_new_tokens": 20}, _TASK, "parts")]
    for n in range(8):
        params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 50 + n}
        if n % 3 == 1:
            recorded = sound(10 * seed + n, seconds=0.15 * n, rate=RATE)
            params |= {"ref_audio": recorded, "ref_text": _SAID}
        if n % 3 == 2:
            params["instructions"] = f"A street, number {n}."
        text = f"Text {n}, number {seed}{' on' * n}."
        found.append(Case({"text": text}, params, _TASK))
    return found


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    assert engine in ENGINES
    torch.set_num_threads(1)
    reference = HiggsSpoken(HiggsOracle.make(folder, seed=seed, **SHAPES[shape]))
    config = HiggsAudioPipelineConfig(
        model_path=str(folder),
        runtime_overrides={"speak": {"num_threads": 1}, "preprocess": {"max_part_bytes": _PART_BYTES}},
    )
    return Subject(config, reference, cases(seed), {"pool_tokens": 416})
