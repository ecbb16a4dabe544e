"""Fish Audio S2-Pro against plain loops without caches: codes and samples of texts, some in a voice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fish_codec_oracle import FishCodec
from fish_s2_oracle import SHAPE, START, FishS2
from tokenizers import Tokenizer

from parity import Subject
from sglang_omni.models.fish_s2_pro.config import FishS2PipelineConfig
from sglang_omni.testing import Answer, Case

SHAPES: dict[str, dict[str, Any]] = {
    "deep": {"layers": 5, "fast_layers": 3, "kv_heads": 1, "codec_layers": 3},
    "many codebooks": {"groups": 8, "codes": 56, "residual_codes": 48, "dim": 64, "heads": 6, "kv_heads": 3},
}
_TASK = "<|im_start|>system\nconvert the provided text to speech"
_TEXTS = (
    "Hello.",
    "a",
    "A longer sentence, with a comma.",
    "One two three four five.",
    "No!",
    "Why is it so?",
)


class Loop:
    """The oracles' loops, on prompts that are written here from their parts."""

    def __init__(self, fish: FishS2) -> None:
        self._fish = fish
        self._codec = FishCodec(fish.path, head_dim=16, encoder_rates=SHAPE["encoder_rates"])
        self._tokenizer = Tokenizer.from_file(str(fish.path / "tokenizer.json"))

    def answers(self, case: Case) -> Answer:
        frames: dict[int, list[int]] = {}
        prompt = self._ids(_TASK)
        if voice := case.inputs.get("voice"):
            said = f"<|speaker:0|>{voice['text']}"
            prompt = self._ids(f"{_TASK} reference to the following:\n\nText:\n{said}\n\nSpeech:\n")
            frames = dict(enumerate(voice["codes"], start=len(prompt)))
            prompt += [START + frame[0] for frame in voice["codes"]]
        end = "<|im_end|>\n<|im_start|>assistant\n<|voice|>"
        prompt += self._ids(f"<|im_end|>\n<|im_start|>user\n{case.inputs['text']}{end}")
        codes = self._fish.speak(prompt, case.params["max_new_tokens"], frames)[1]
        return Answer(codes=codes, samples=self._codec.decode(torch.tensor(codes)).numpy())

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def cases(groups: int, codes: int) -> list[Case]:
    voice = {"text": "Hi", "codes": [[(7 * i + g) % codes for g in range(groups)] for i in range(9)]}
    inputs = [{"text": text} for text in _TEXTS] + [{"text": text, "voice": voice} for text in _TEXTS[:2]]
    return [
        Case(each, {"temperature": 0.0, "max_new_tokens": 14 + 2 * n}, {"task": "speech"})
        for n, each in enumerate(inputs)
    ]


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    fish = FishS2.make(folder, seed=seed, **SHAPES[shape])
    overrides: dict[str, dict[str, Any]] = {
        "dual_ar": {"engine": engine, "num_threads": 1},
        "codec": {"num_threads": 1},
    }
    config = FishS2PipelineConfig(model_path=str(folder), runtime_overrides=overrides)
    # The longest prompt takes 141 tokens.
    return Subject(config, Loop(fish), cases(fish.groups, fish.codes), {"pool_tokens": 176})
