"""A vision encoder, but for its layers: batches of images and videos to rows of the thinker's input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.omni.packed_attention import load_varlen
from sglang_omni.models.omni.payloads import VisualInput


class VisualEncoder(ABC):
    """A vision tower for batches of images and videos; costs are in patches.

    The output of an item are the input rows of its placeholders, (t * h * w / merge ** 2, H), followed by a
    tensor of the same shape for each deepstack level, if the tower has any.

    Args:
        config: ``vision_config`` of ``thinker_config``.
    """

    def __init__(
        self, model_path: str | Path, config: Mapping[str, Any], dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        self._model = load_component(model_path, "thinker.visual.", self._tower(config), dtype, device)
        self._dtype = dtype
        self._device = device
        heads, hidden = self._model.config.num_heads, self._model.config.hidden_size
        self._varlen = load_varlen(device, dtype, heads, hidden // heads)

    @staticmethod
    @abstractmethod
    def _tower(config: Mapping[str, Any]) -> Callable[[], Any]:
        """Makes transformers' tower without its weights."""

    def info(self, item: VisualInput) -> ItemInfo:
        return ItemInfo(item["key"], cost=len(item["pixel_values"]))

    @torch.inference_mode()
    def encode(self, items: Sequence[VisualInput]) -> list[ItemOutput]:
        # Copied as they are: on its way to a GPU, a tensor of another type would be converted by the CPU.
        patches = [item["pixel_values"].to(self._device, non_blocking=True) for item in items]
        pixels = patches[0] if len(patches) == 1 else torch.cat(patches)
        grids = [item["grid_thw"] for item in items]
        frames = [h * w for t, h, w in grids for _ in range(t)]
        # On the host, where the layout is computed.
        levels = self._levels(pixels.to(self._dtype), torch.tensor(grids), frames)
        if len(items) == 1:
            return [tuple(levels)]
        rows = [len(item["pixel_values"]) // self._model.spatial_merge_unit for item in items]
        # Copies, because a cached item must not keep the whole batch.
        return [
            tuple(part.clone() for part in parts)
            for parts in zip(*(level.split(rows) for level in levels), strict=True)
        ]

    @abstractmethod
    def _levels(self, pixels: Tensor, sizes: Tensor, frames: Sequence[int]) -> list[Tensor]:
        """The rows of all items, and of each deepstack level.

        Args:
            pixels: Patches of all items, one after the other, on the device.
            sizes: (items, 3) int64 on the host: each item's patches along time, height and width.
            frames: Patches of each frame of all items.
        """
