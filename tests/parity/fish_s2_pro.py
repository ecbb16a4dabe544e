"""Fish Audio S2-Pro against a plain loop without caches: codes of texts, two of them in a voice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fish_s2_oracle import CODES, GROUPS, START, FishS2
from tokenizers import Tokenizer

from parity import Subject
from sglang_omni.models.fish_s2_pro.config import FishS2CodesPipelineConfig
from sglang_omni.testing import Answer, Case

SHAPES: dict[str, dict[str, Any]] = {"default": {}}
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
    """The oracle's loop, on prompts that are written here from their parts."""

    def __init__(self, fish: FishS2) -> None:
        self._fish = fish
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
        return Answer(codes=self._fish.speak(prompt, case.params["max_new_tokens"], frames)[1])

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def cases() -> list[Case]:
    voice = {"text": "Hi", "codes": [[(7 * i + g) % CODES for g in range(GROUPS)] for i in range(9)]}
    inputs = [{"text": text} for text in _TEXTS] + [{"text": text, "voice": voice} for text in _TEXTS[:2]]
    return [Case(each, {"temperature": 0.0, "max_new_tokens": 14}) for each in inputs]


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    own = {"engine": engine, "num_threads": 1}
    config = FishS2CodesPipelineConfig(model_path=str(folder), runtime_overrides={"dual_ar": own})
    # The longest prompt takes 141 tokens.
    return Subject(config, Loop(FishS2.make(folder, seed=seed)), cases(), {"pool_tokens": 240})
