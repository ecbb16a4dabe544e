"""Checkpoint files that are read, miss tensors, have too many, or are broken."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sglang_omni import weight_files
from sglang_omni.model_runner import readahead
from sglang_omni.model_runner.loader import Checkpoint, load_module, weights_on_meta

TENSORS = {
    "ear.weight": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "ear.bias": torch.arange(2, dtype=torch.float16),
    "eye.weight": torch.arange(4.0),
    "eye.index": torch.arange(3),
}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """``ear`` in the first shard, ``eye`` in the second."""
    weight_map = {}
    for number, part in enumerate(("ear", "eye"), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        tensors = {name: tensor for name, tensor in TENSORS.items() if name.startswith(part)}
        save_file(tensors, tmp_path / shard)
        weight_map.update(dict.fromkeys(tensors, shard))
    (tmp_path / weight_files.INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def shape(name: str) -> tuple[int, ...]:
    return tuple(TENSORS[name].shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_float_becomes_the_wanted_dtype(sharded: Path, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint(sharded, dtype)
    read = {name: checkpoint.take(name, shape(name)) for name in TENSORS if name != "eye.index"}
    read["eye.index"] = checkpoint.take_integers("eye.index", (3,))
    checkpoint.finish()

    for name, tensor in TENSORS.items():
        expected = tensor.to(dtype) if tensor.is_floating_point() else tensor
        assert read[name].dtype == expected.dtype
        assert torch.equal(read[name], expected)


def test_a_component_needs_its_own_shards_only(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").write_bytes(b"not weights at all")
    checkpoint = Checkpoint(sharded, torch.float32, component="ear.")
    checkpoint.take("ear.weight", (2, 3))

    with pytest.raises(ValueError, match=r"1 tensor the model lacks: ear\.bias"):
        checkpoint.finish()
    checkpoint.take("ear.bias", (2,))
    checkpoint.finish()
    with pytest.raises(ValueError, match=r"00002-of-00002.safetensors is corrupted or incomplete"):
        checkpoint.take("eye.weight", (4,))


def test_weights_are_the_mapped_file(sharded: Path) -> None:
    path = sharded / "model-00002-of-00002.safetensors"
    taken = Checkpoint(sharded, torch.float32, component="eye.").take("eye.weight", (4,))

    assert str(path) in Path("/proc/self/maps").read_text()
    assert torch.equal(taken, TENSORS["eye.weight"])


def test_what_is_missing_or_misshapen_is_named(sharded: Path) -> None:
    checkpoint = Checkpoint(sharded, torch.float32)

    with pytest.raises(ValueError, match=r"lacks the tensor 'ear\.gain'"):
        checkpoint.take("ear.gain", (1,))
    with pytest.raises(ValueError, match=r"'ear\.weight' has shape \(2, 3\), config.json asks for \(3, 2\)"):
        checkpoint.take("ear.weight", (3, 2))
    with pytest.raises(ValueError, match=r"no tensors whose names begin with 'nose\.'"):
        Checkpoint(sharded, torch.float32, component="nose.")
    with pytest.raises(ValueError, match=r"'eye\.index' is torch.int64, where floating-point numbers are"):
        checkpoint.take("eye.index", (3,))
    with pytest.raises(ValueError, match=r"'eye\.weight' is torch.float32, where integers are expected"):
        checkpoint.take_integers("eye.weight", (4,))


def test_an_absent_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00001-of-00002.safetensors").unlink()

    with pytest.raises(FileNotFoundError, match=r"lists model-00001-of-00002.safetensors, which"):
        Checkpoint(sharded, torch.float32)
    Checkpoint(sharded, torch.float32, component="eye.")


def test_a_tensor_that_is_not_where_the_index_says(sharded: Path) -> None:
    index = json.loads((sharded / weight_files.INDEX_FILE).read_text())
    index["weight_map"]["ear.ghost"] = "model-00001-of-00002.safetensors"
    (sharded / weight_files.INDEX_FILE).write_text(json.dumps(index))

    with pytest.raises(ValueError, match=r"00001-of-00002.safetensors does not hold 'ear\.ghost'"):
        Checkpoint(sharded, torch.float32).take("ear.ghost", (1,))


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / weight_files.SINGLE_FILE
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(ValueError, match=r"model.safetensors is corrupted or incomplete .* again"):
        Checkpoint(tmp_path, torch.float32)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"metadata": {}}', '{"weight_map": 3}', '{"weight_map": {"a": 1}}']
)
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / weight_files.INDEX_FILE).write_text(text)

    with pytest.raises(ValueError, match="is no index of shards"):
        Checkpoint(tmp_path, torch.float32)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors nor"):
        Checkpoint(tmp_path, torch.float32)


class Ear(nn.Module):
    sinusoid: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("sinusoid", torch.arange(4.0).sin(), persistent=False)


def test_a_module_keeps_what_no_checkpoint_holds(tmp_path: Path) -> None:
    tensors = {f"ear.{name}": tensor + 1 for name, tensor in Ear().state_dict().items()}
    save_file(tensors, tmp_path / weight_files.SINGLE_FILE)
    with weights_on_meta():
        ear = Ear()
    assert all(parameter.is_meta for parameter in ear.parameters())

    checkpoint = Checkpoint(tmp_path, torch.float32, component="ear.")
    load_module(checkpoint, ear, "ear.")
    checkpoint.finish()

    assert {f"ear.{name}" for name in ear.state_dict()} == set(tensors)
    assert all(torch.equal(tensor, tensors[f"ear.{name}"]) for name, tensor in ear.state_dict().items())
    assert torch.equal(ear.sinusoid, torch.arange(4.0).sin())
    assert not ear.training
    assert not any(parameter.requires_grad for parameter in ear.parameters())
    assert not nn.Linear(1, 1).weight.is_meta, "modules built outside are as ever"


def test_a_module_that_lost_its_buffers_says_so(tmp_path: Path) -> None:
    save_file(
        {f"ear.{name}": tensor for name, tensor in Ear().state_dict().items()}, tmp_path / "model.safetensors"
    )
    with torch.device("meta"):
        ear = Ear()

    with pytest.raises(ValueError, match="lost buffers that no checkpoint holds: sinusoid"):
        load_module(Checkpoint(tmp_path, torch.float32), ear, "ear.")


def test_progress_is_drawn_on_a_terminal_only(
    sharded: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    drawn: list[str] = []
    caplog.set_level("INFO")
    for stderr in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", stderr)
        checkpoint = Checkpoint(sharded, torch.float32, component="ear.")
        checkpoint.take("ear.weight", (2, 3))
        checkpoint.take("ear.bias", (2,))
        checkpoint.finish()
        drawn.append(stderr.getvalue())

    assert "Loading ear" in drawn[0]
    assert drawn[1] == ""
    assert [f"read ear from {sharded}" in record.message for record in caplog.records] == [True, True]


def test_the_components_part_of_a_shard_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in pieces, from its first tensor to its last, whichever is taken first."""
    path = tmp_path / weight_files.SINGLE_FILE
    tensors = {f"{part}.{n}": torch.full((300,), n, dtype=torch.uint8) for part in "abc" for n in range(4)}
    save_file(tensors, path)
    asked: list[tuple[int, int]] = []
    done = threading.Event()

    def advise(file: int, at: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        asked.append((at, length))
        if sum(length for _, length in asked) == 1200:
            done.set()

    monkeypatch.setattr(readahead, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(readahead, "_PIECE_BYTES", 500)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    checkpoint = Checkpoint(tmp_path, None, "b.")
    assert asked == []
    for n in (2, 0, 1, 3):
        checkpoint.take_integers(f"b.{n}", (300,))
    checkpoint.finish()
    assert done.wait(60)
    start = path.stat().st_size - 2 * 1200
    assert asked == [(start, 500), (start + 500, 500), (start + 1000, 200)]


def test_a_system_that_reads_nothing_ahead_loads_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_file({"a": torch.ones(300)}, tmp_path / weight_files.SINGLE_FILE)
    monkeypatch.setattr(readahead, "_LEAST_BYTES", 0)
    monkeypatch.delattr(os, "posix_fadvise")
    checkpoint = Checkpoint(tmp_path, None)
    assert torch.equal(checkpoint.take("a", (300,)), torch.ones(300))
    for thread in threading.enumerate():
        if thread.name.startswith("readahead"):
            thread.join(60)
    assert "is not read ahead" in caplog.text
