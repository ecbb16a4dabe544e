"""Language models against transformers' own classes: tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from parity import Subject
from sglang_omni.models.text.config import TextPipelineConfig
from sglang_omni.models.text.tiny_checkpoint import make
from sglang_omni.testing import Answer, Case

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
_SLIDING = {"use_sliding_window": True, "sliding_window": 16}
# ``fields`` of config.json are changed after it is made.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-deep": {"layers": 4, "hidden": 96, "heads": 6, "kv_heads": 3, "tied": True},
    "qwen2": {"kind": "qwen2", "kv_heads": 1},
    "qwen3": {"kind": "qwen3", "head_dim": 32, "kv_heads": 4},
    "qwen3-yarn": {"kind": "qwen3", "fields": {"rope_scaling": _YARN}},
    "qwen2-sliding": {"kind": "qwen2", "fields": {**_SLIDING, "max_window_layers": 1}},
}
# SGLang's class leaves the windows out.
SHAPE_ENGINES = {"qwen2-sliding": ["omni"]}


class Generated:
    """``generate`` of transformers, greedy, float32, one prompt at a time."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        torch.set_num_threads(1)
        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def answers(self, case: Case) -> Answer:
        import torch

        prompt = torch.tensor([case.inputs["prompt_token_ids"]])
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=case.params["max_new_tokens"],
            do_sample=False,
        )
        return Answer(tokens=output[0, prompt.shape[1] :].tolist())


def cases(seed: int, count: int = 10) -> list[Case]:
    """Prompts of random bytes, the later ones with a common beginning; the longest takes several pages."""
    chance = random.Random(seed)
    stem = [chance.randrange(256) for _ in range(40)]
    return [
        Case(
            {"prompt_token_ids": stem * (n % 2) + [chance.randrange(256) for _ in range(1 + 3 * n)]},
            {"temperature": 0.0, "max_new_tokens": 12 + 3 * n},
            {"task": "completion"},
        )
        for n in range(count)
    ]


def subject(folder: Path, seed: int, shape: str, engine: str) -> Subject:
    options = dict(SHAPES[shape])
    changed = options.pop("fields", {})
    path = make(folder, seed, **options)
    config_file = path / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | changed))
    own = {"engine": engine, "num_threads": 1}
    config = TextPipelineConfig(model_path=str(path), runtime_overrides={"thinker": own})
    return Subject(config, Generated(path), cases(seed), {})
