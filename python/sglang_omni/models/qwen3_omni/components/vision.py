"""The vision encoder: images and videos to rows of the thinker's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.qwen3_omni.payloads import VisualInput

_PREFIX = "thinker.visual."


class VisionEncoder:
    """transformers' ``Qwen3OmniMoeVisionEncoder`` for batches of images and videos; costs are in patches.

    The output of an item are the input rows of its placeholders, (t * h * w / merge ** 2, H), followed by a
    tensor of the same shape for each deepstack level.
    """

    def __init__(
        self, model_path: str | Path, config: Mapping[str, Any], dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        """
        Args:
            config: ``vision_config`` of ``thinker_config``.
        """
        from sglang_omni.models.qwen3_omni.components.reference import (
            Qwen3OmniMoeVisionEncoder,
            Qwen3OmniMoeVisionEncoderConfig,
        )

        def build() -> Qwen3OmniMoeVisionEncoder:
            return Qwen3OmniMoeVisionEncoder(Qwen3OmniMoeVisionEncoderConfig(**config))

        self._model = load_component(model_path, _PREFIX, build, dtype, device)
        self._dtype = dtype
        self._device = device

    def info(self, item: VisualInput) -> ItemInfo:
        return ItemInfo(item["key"], cost=len(item["pixel_values"]))

    @torch.inference_mode()
    def encode(self, items: Sequence[VisualInput]) -> list[ItemOutput]:
        pixels = torch.cat([item["pixel_values"].to(self._device, self._dtype) for item in items])
        grids = torch.tensor([item["grid_thw"] for item in items], device=self._device)
        output = self._model(pixels, grid_thw=grids)
        merge = self._model.spatial_merge_unit
        rows = [len(item["pixel_values"]) // merge for item in items]
        levels = [output.pooler_output, *output.deepstack_features]
        # Copies, because a cached item must not keep the whole batch.
        return [
            tuple(part.clone() for part in parts)
            for parts in zip(*(level.split(rows) for level in levels), strict=True)
        ]
