"""Qwen3-TTS against the authors' package: codes and samples, in voices of recordings, named and described."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import soundfile
import torch
from qwen3_tts_oracle import RATE, Qwen3TTSOracle, Recording
from sample_media import sound

from parity import Subject
from sglang_omni.models.qwen3_tts.config import default_config
from sglang_omni.testing import Answer, Case

SHAPES: dict[str, dict[str, Any]] = {
    "recording": {"layers": 3},
    "speakers": {"kind": "custom_voice", "hidden_size": 48, "predictor_hidden": 48, "groups": 16},
    "described": {
        **{"kind": "voice_design", "heads": 6, "kv_heads": 3},
        **{"groups": 7, "codes": 128, "predictor_layers": 3},
    },
}
_TASK = {"task": "speech"}
_SAID = "This is how I sound"
_PART_BYTES = 80
_PARTS = [
    "This is the first of the sentences. And here is the second of them.",
    "Is it a third? It is a fourth, and it ends the text.",
]
_LANGUAGES = (None, "English", "Chinese", "German")
_SPEAKERS = ("ryan", "eric", "dylan", "vivian")


class Qwen3TTSSpoken:
    """The package's functions, greedy, float32, one text at a time."""

    def __init__(self, oracle: Qwen3TTSOracle) -> None:
        self._oracle = oracle

    def answers(self, case: Case) -> Answer:
        params, text = case.params, case.inputs["text"]
        fields: dict[str, Any] = {"instruct": params.get("instructions")}
        if (recorded := params.get("ref_audio")) is not None:
            samples = soundfile.read(io.BytesIO(recorded), dtype="float32")[0]
            fields = {"recording": Recording(samples, params.get("ref_text"))}
        elif "voice" in params:
            fields["speaker"] = params["voice"]
        fields["language"] = params.get("language") or "Auto"
        said = [
            self._oracle.speak(part, params["max_new_tokens"], **fields)
            for part in (_PARTS if text == " ".join(_PARTS) else [text])
        ]
        frames = [frame for each in said for frame in each.frames]
        if len(said) == 1:
            return Answer(codes=frames, samples=said[0].samples)
        # One stream: a part goes on after the one before it.
        return Answer(codes=frames, samples=self._oracle.decode(frames))


def cases(seed: int, kind: str) -> list[Case]:
    found = []
    for n in range(9):
        params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 24 + n}
        if (language := _LANGUAGES[n % 4]) is not None:
            params["language"] = language
        if kind == "base":
            recorded = sound(10 * seed + n, seconds=0.1 + 0.02 * n, rate=RATE)
            params |= {"ref_audio": recorded} | ({"ref_text": _SAID} if n % 3 else {})
        elif kind == "custom_voice":
            params["voice"] = _SPEAKERS[n // 2 % 4]
        text = f"Text {n}, number {seed}{' on' * n}."
        found.append(Case({"text": text}, params, _TASK))
    if kind != "base":
        params = {"temperature": 0.0, "max_new_tokens": 20}
        if kind == "custom_voice":
            params["voice"] = "aiden"
        found.append(Case({"text": " ".join(_PARTS)}, params, _TASK, "parts"))
    if kind == "voice_design":
        found = [
            replace(case, params={**case.params, "instructions": f"Speak like number {n}."})
            for n, case in enumerate(found)
        ]
    return found


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    fields = SHAPES[shape]
    reference = Qwen3TTSSpoken(Qwen3TTSOracle.make(folder, seed=seed, **fields))
    config = default_config(str(folder))
    config.runtime_overrides = {
        "speak": {"engine": engine, "num_threads": 1},
        "preprocess": {"max_part_bytes": _PART_BYTES},
    }
    return Subject(config, reference, cases(seed, fields.get("kind", "base")), {"pool_tokens": 192})
