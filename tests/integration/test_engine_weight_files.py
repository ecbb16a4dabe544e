"""Engines compute the weights that a checkpoint names, whatever other files are beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_runs import run
from sglang_engines import KINDS, engines
from text_engines import greedy, prompts, text_engine
from tiny_checkpoints import make_checkpoint

from sglang_omni.engines.options import DecoderSpec

# build(path, **options)
Build = Callable[..., Any]


@pytest.fixture(params=KINDS)
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    with engines(request.param) as build:
        yield lambda path, **options: build(DecoderSpec.from_dir(path), **options)


def test_sharded_checkpoint(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "qwen3", 14, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    (prompt,) = prompts(14, [12])

    assert run(text_engine(tmp_path), [greedy("a", prompt, 10)]) == [checkpoint.greedy(prompt, 10)]


@pytest.mark.parametrize("kind", ["named", "indexed", "beside"])
def test_weights_beside_others_in_another_form(tmp_path: Path, build: Build, kind: str) -> None:
    """Of which engines that read all files would take the last one's."""
    checkpoint = make_checkpoint(tmp_path / "right", "qwen3", 14, max_shard_size="100KB")
    make_checkpoint(tmp_path / "wrong", "qwen3", 15)
    path = shutil.copytree(tmp_path / "right", tmp_path / "both")
    if kind == "beside":
        checkpoint.model.save_pretrained(path)
        for file in (path / "model.safetensors.index.json", *path.glob("model-*")):
            file.unlink(missing_ok=True)
        shutil.copy(tmp_path / "wrong" / "model.safetensors", path / "model.fp32-00001-of-00001.safetensors")
    else:
        shutil.copy(tmp_path / "wrong" / "model.safetensors", path)
        renamed = {"named": "transformers.safetensors.index.json", "indexed": "model.safetensors.index.json"}[
            kind
        ]
        (path / "model.safetensors.index.json").rename(path / renamed)
        config = json.loads((path / "config.json").read_text()) | {"transformers_weights": renamed}
        (path / "config.json").write_text(json.dumps(config))
    (prompt,) = prompts(14, [12])

    assert run(build(path), [greedy("a", prompt, 10)]) == [checkpoint.greedy(prompt, 10)]
