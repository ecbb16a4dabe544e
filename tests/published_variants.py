"""Other forms in which checkpoints of a family are published: a directory as our makers write it, rewritten.

Each says the same model: what is read of it, and what it takes, must be the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_omni.weight_files import INDEX_FILE, NAMED_BY, SINGLE_FILE, weight_files_in

_SHARDS = 4


def resaved(path: Path) -> None:
    """``config.json`` as transformers saves it: ``rope_parameters``, ``dtype``, ``model_type`` of parts."""
    from transformers import AutoConfig

    named = _config(path).get(NAMED_BY)
    AutoConfig.from_pretrained(path).save_pretrained(path)
    if named is not None:
        _write_config(path, {**_config(path), NAMED_BY: named})


def other_dtype_key(path: Path) -> None:
    """``dtype`` where it was ``torch_dtype``, and the reverse."""
    other = {"dtype": "torch_dtype", "torch_dtype": "dtype"}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {other.get(name, name): renamed(part) for name, part in value.items()}
        return value

    _write_config(path, renamed(_config(path)))


def one_file(path: Path) -> None:
    """All weights in ``model.safetensors``."""
    _rewrite(path, {SINGLE_FILE: list(_weights(path))})


def sharded(path: Path) -> None:
    """Weights in four files with an index."""
    names = sorted(_weights(path))
    _rewrite(
        path,
        {
            f"model-{shard + 1:05}-of-{_SHARDS:05}.safetensors": names[shard::_SHARDS]
            for shard in range(_SHARDS)
        },
    )


def with_decoys(path: Path) -> None:
    """The same weights once more, in other precisions, layouts and formats."""
    for name in (
        *("model.fp32-00001-of-00002.safetensors", "model.fp32-00002-of-00002.safetensors"),
        *("consolidated.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"),
        *("original/consolidated.00.pth", "onnx/model.onnx", "model.safetensors.index.fp32.json"),
    ):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"no weights that are read here")


VARIANTS: tuple[Callable[[Path], None], ...] = (resaved, other_dtype_key, one_file, sharded, with_decoys)


def variant(made: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    """A copy of a checkpoint in another form."""
    path = shutil.copytree(made, folder / change.__name__)
    change(path)
    return path


def _config(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((path / "config.json").read_text())
    return fields


def _write_config(path: Path, fields: dict[str, Any]) -> None:
    (path / "config.json").write_text(json.dumps(fields))


def _weights(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    files = weight_files_in(path).files
    return {name: tensor for file in files for name, tensor in load_file(path / file).items()}


def _rewrite(path: Path, files: dict[str, list[str]]) -> None:
    """Puts the weights into other files, and takes away those that were there."""
    from safetensors.torch import save_file

    weights = _weights(path)
    for old in (*path.glob("*.safetensors"), *path.glob("*.safetensors.index.json")):
        old.unlink()
    config = _config(path)
    config.pop(NAMED_BY, None)
    _write_config(path, config)
    for file, names in files.items():
        save_file({name: weights[name] for name in names}, path / file, metadata={"format": "pt"})
    if len(files) > 1:
        weight_map = {name: file for file, names in files.items() for name in names}
        size = sum(weight.nbytes for weight in weights.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (path / INDEX_FILE).write_text(json.dumps(index))
