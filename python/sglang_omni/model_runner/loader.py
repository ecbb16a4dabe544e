"""Weights from a Hugging Face checkpoint directory: one safetensors file, or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Checkpoint:
    """Named tensors of a checkpoint directory, read from memory-mapped files as they are asked for.

    Every ``take`` is recorded, so that ``check_all_taken`` can name what the model did not consume.
    """

    def __init__(self, model_path: str | Path, dtype: torch.dtype) -> None:
        self._directory = Path(model_path)
        self._dtype = dtype
        self._files = {path: safe_open(path, framework="pt") for path in self._shards()}
        self._owner = {name: file for file in self._files.values() for name in file.keys()}  # noqa: SIM118
        self._taken: set[str] = set()

    def _shards(self) -> Iterator[Path]:
        index = self._directory / INDEX_FILE
        single = self._directory / SINGLE_FILE
        if single.is_file():
            yield single
        elif index.is_file():
            for name in sorted(set(json.loads(index.read_text())["weight_map"].values())):
                if not (self._directory / name).is_file():
                    raise FileNotFoundError(f"{index} lists {name}, which is not there")
                yield self._directory / name
        else:
            raise FileNotFoundError(f"{self._directory} has neither {SINGLE_FILE} nor {INDEX_FILE}")

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor ``name`` in the model's dtype.

        Raises:
            ValueError: the checkpoint has no such tensor, or one of another shape.
        """
        if name not in self._owner:
            raise ValueError(f"checkpoint {self._directory} lacks the tensor {name!r}")
        tensor: Tensor = self._owner[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"checkpoint {self._directory}: {name!r} has shape {tuple(tensor.shape)}, "
                f"config.json asks for {shape}"
            )
        self._taken.add(name)
        return tensor.to(self._dtype)

    def take_stacked(self, names: list[str], shapes: list[tuple[int, ...]]) -> Tensor:
        """Several tensors joined along their first dimension: projections of the same input, one product."""
        return torch.cat([self.take(name, shape) for name, shape in zip(names, shapes, strict=True)])

    def check_all_taken(self, *, optional: tuple[str, ...] = ()) -> None:
        """Raises ValueError that names the tensors no part of the model asked for."""
        extra = [
            name
            for name in self._owner
            if name not in self._taken and name not in optional and not name.endswith("rotary_emb.inv_freq")
        ]
        if extra:
            shown = ", ".join(extra[:5]) + (", ..." if len(extra) > 5 else "")
            raise ValueError(
                f"checkpoint {self._directory} has {len(extra)} tensors the model lacks: {shown}"
            )
