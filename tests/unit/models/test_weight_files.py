"""The files of a checkpoint that hold its weights, beside others that hold the same in another form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sglang_omni.config.plan.weights import tensor_sizes
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.weight_files import weight_files

CSM = [
    *("config.json", "ckpt.pt", "model.safetensors", "transformers.safetensors.index.json"),
    *(f"transformers-0000{number}-of-00002.safetensors" for number in (1, 2)),
]
WHISPER = [
    *("config.json", "model.safetensors", "model.safetensors.index.fp32.json", "pytorch_model.bin"),
    *(f"model.fp32-0000{number}-of-00002.safetensors" for number in (1, 2)),
]
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


def index(*shards: str) -> str:
    return json.dumps({"metadata": {}, "weight_map": {f"tensor.{shard}": shard for shard in shards}})


def chosen(names: list[str], fields: dict[str, Any] | None = None, **texts: str) -> list[str]:
    return list(weight_files(names, fields or {}, texts.__getitem__).files)


def test_the_file_that_config_names_goes_before_all_others() -> None:
    named = "transformers.safetensors.index.json"
    assert chosen(CSM, {"transformers_weights": named}, **{named: index(*CSM[-2:])}) == CSM[-2:]
    assert chosen(CSM) == ["model.safetensors"]
    assert chosen([*WHISPER, "other.safetensors"], {"transformers_weights": "other.safetensors"}) == [
        "other.safetensors"
    ]
    assert chosen(CSM, {"transformers_weights": None}) == ["model.safetensors"]


def test_copies_in_another_form_are_left() -> None:
    assert chosen(WHISPER) == ["model.safetensors"]
    sharded = [*SHARDS, "model.safetensors.index.json", "consolidated.safetensors", "model.fp32.safetensors"]
    assert chosen(sharded, **{"model.safetensors.index.json": index(*SHARDS)}) == SHARDS
    # The index is what is read, also of shards that are not there.
    lost = ["model.safetensors.index.json", SHARDS[0]]
    assert chosen(lost, **{"model.safetensors.index.json": index(*SHARDS)}) == SHARDS
    assert chosen([*SHARDS, "consolidated.safetensors", "original/model.safetensors"]) == SHARDS


@pytest.mark.parametrize("named", ["../model.safetensors", "pytorch_model.bin", "index.json", 3, ""])
def test_a_name_that_can_be_none(named: Any) -> None:
    with pytest.raises(ValueError, match=r"transformers_weights .*: it must be the name of a file beside it"):
        chosen(CSM, {"transformers_weights": named})


def test_what_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"says transformers_weights 'a.safetensors', which is not"):
        chosen(CSM, {"transformers_weights": "a.safetensors"})
    with pytest.raises(FileNotFoundError, match=r"has neither model\.safetensors nor"):
        chosen(["config.json", "pytorch_model.bin"])
    with pytest.raises(ValueError, match="is no index of shards"):
        chosen(["model.safetensors.index.json"], **{"model.safetensors.index.json": "{}"})


@pytest.fixture
def csm(tmp_path: Path) -> Path:
    """As sesame/csm-1b is published: its authors' layout beside that of transformers."""
    save_file({"backbone.weight": torch.zeros(9)}, tmp_path / "model.safetensors")
    weight_map = {}
    for name, shard in zip(("embed.weight", "head.weight"), CSM[-2:], strict=True):
        save_file({name: torch.arange(4.0)}, tmp_path / shard)
        weight_map[name] = shard
    fields = {"model_type": "csm", "transformers_weights": "transformers.safetensors.index.json"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "transformers.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_the_loader_and_the_memory_plan_read_what_config_names(csm: Path) -> None:
    checkpoint = Checkpoint(csm, torch.float32)
    assert checkpoint.unread == ["embed.weight", "head.weight"]
    assert torch.equal(checkpoint.take("embed.weight", (4,)), torch.arange(4.0))
    assert sorted(size.name for size in tensor_sizes(csm)) == ["embed.weight", "head.weight"]

    (csm / CSM[-1]).unlink()
    for read in (lambda: Checkpoint(csm, torch.float32), lambda: tensor_sizes(csm)):
        with pytest.raises(FileNotFoundError, match=r"transformers.*json lists transformers-"):
            read()


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        Checkpoint(tmp_path, torch.float32)


def test_shards_without_an_index(tmp_path: Path) -> None:
    for name, shard in zip("ab", SHARDS, strict=True):
        save_file({name: torch.ones(2)}, tmp_path / shard)
    assert Checkpoint(tmp_path, torch.float32).unread == ["a", "b"]
    assert [size.name for size in tensor_sizes(tmp_path)] == ["a", "b"]
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"'a' is both in .*model-00001-of-00002.* and in other.safetensors"):
        Checkpoint(tmp_path, torch.float32)
