"""CSM against transformers' own classes: codes and samples of texts, some in a voice, one in parts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import soundfile
import torch
from csm_oracle import RATE, CsmOracle
from sample_media import sound
from spoken_parts import frames_of_parts

from parity import Subject
from sglang_omni.models.csm.config import CsmPipelineConfig
from sglang_omni.testing import Answer, Case

SHAPES: dict[str, dict[str, int]] = {
    "deep": {"layers": 4, "heads": 2, "kv_heads": 1},
    "many codebooks": {
        **{"hidden_size": 48, "heads": 6, "kv_heads": 6, "codebooks": 7, "codes": 128},
        **{"depth_layers": 3, "depth_heads": 4, "depth_kv_heads": 2},
    },
}
_TASK = {"task": "speech"}
_SAID = "This is how I sound"
_PART_BYTES = 40
_PARTS = ["This is the first. And here the second.", "Is it a third? It is a fourth.", "And the end."]


class Spoken:
    """``generate`` of transformers, greedy, float32, one text at a time."""

    def __init__(self, oracle: CsmOracle) -> None:
        self._oracle = oracle

    def answers(self, case: Case) -> Answer:
        text, limit = case.inputs["text"], case.params["max_new_tokens"]
        if text == " ".join(_PARTS):
            frames = frames_of_parts(self._oracle, _PARTS, limit)
            return Answer(codes=frames, samples=self._oracle.decode(frames).numpy())
        turn: dict[str, Any] = {"voice": case.params["voice"]}
        if (recorded := case.params.get("ref_audio")) is not None:
            samples = soundfile.read(io.BytesIO(recorded), dtype="float32")[0]
            turn |= {"said": case.params["ref_text"], "sound": samples}
        said = self._oracle.speak(text, limit, **turn)
        return Answer(codes=said.frames, samples=said.samples.numpy())


def cases(seed: int) -> list[Case]:
    found = [Case({"text": " ".join(_PARTS)}, {"temperature": 0.0, "max_new_tokens": 10}, _TASK, "parts")]
    for n in range(8):
        params = {"temperature": 0.0, "max_new_tokens": 40 + n, "voice": str(n)}
        if n % 3 == 1:
            recorded = sound(10 * seed + n, seconds=0.15 * n, rate=RATE)
            params |= {"ref_audio": recorded, "ref_text": _SAID}
        text = f"Text {n}, number {seed}{' on' * n}."
        found.append(Case({"text": text}, params, _TASK))
    return found


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    reference = Spoken(CsmOracle.make(folder, seed=seed, **SHAPES[shape]))
    own = {"engine": engine, "num_threads": 1}
    config = CsmPipelineConfig(
        model_path=str(folder),
        runtime_overrides={"speak": own, "preprocess": {"max_part_bytes": _PART_BYTES}},
    )
    # The longest prompt and speech take 129 tokens.
    return Subject(config, reference, cases(seed), {"pool_tokens": 144})
