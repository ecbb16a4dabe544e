"""Qwen3-Omni against transformers: tokens, codes and samples of ten kinds of conversation."""

from __future__ import annotations

from pathlib import Path

import torch
from qwen3_omni_cases import all_cases
from qwen3_omni_oracle import SHAPES, Oracle

from parity import Subject
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.testing import Answer, Case

__all__ = ["SHAPES", "subject"]


class Spoken:
    """The oracle, asked for text and speech."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        # Each so worded that this random talker says something.
        # The longest first: they are asked twice at once, and so fill a small pool.
        asked = [case.spoken_by(oracle)[0] for case in reversed(all_cases())]
        asked.append(next(case for case in asked if case.name == "text").stopped_by(oracle))
        self._asked = {case.name: case for case in asked}

    @property
    def cases(self) -> list[Case]:
        return [case.spoken for case in self._asked.values()]

    def answers(self, case: Case) -> Answer:
        right = self._asked[case.name].expected(self._oracle)
        return Answer(right.token_ids, right.codes, right.waveform)


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    torch.set_num_threads(1)
    reference = Spoken(Oracle.make(folder, seed=seed, shape=shape))
    own = {"engine": engine, "num_threads": 1}
    config = Qwen3OmniPipelineConfig(
        model_path=str(folder), runtime_overrides={"thinker": own, "talker": own}
    )
    return Subject(config, reference, reference.cases, {"prefill_tokens": 16})
