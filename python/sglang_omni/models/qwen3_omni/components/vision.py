"""The vision encoder: images and videos to rows of the thinker's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.multimodal.packed_attention import load_varlen, segments
from sglang_omni.models.multimodal.payloads import VisualInput

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
            PACKED_ATTENTION,
            Qwen3OmniMoeVisionEncoder,
            Qwen3OmniMoeVisionEncoderConfig,
        )

        settings = {**config, "attn_implementation": PACKED_ATTENTION}

        def build() -> Qwen3OmniMoeVisionEncoder:
            return Qwen3OmniMoeVisionEncoder(Qwen3OmniMoeVisionEncoderConfig(**settings))

        self._model = load_component(model_path, _PREFIX, build, dtype, device)
        self._dtype = dtype
        self._device = device
        heads, hidden = self._model.config.num_heads, self._model.config.hidden_size
        self._varlen = load_varlen(device, dtype, heads, hidden // heads)

    def info(self, item: VisualInput) -> ItemInfo:
        return ItemInfo(item["key"], cost=len(item["pixel_values"]))

    @torch.inference_mode()
    def encode(self, items: Sequence[VisualInput]) -> list[ItemOutput]:
        # Copied as they are: on its way to a GPU, a tensor of another type would be converted by the CPU.
        patches = [item["pixel_values"].to(self._device, non_blocking=True) for item in items]
        pixels = patches[0] if len(patches) == 1 else torch.cat(patches)
        grids = [item["grid_thw"] for item in items]
        sizes = torch.tensor(grids)
        places = {name: place.to(self._device) for name, place in self._places(sizes).items()}
        frames = [h * w for t, h, w in grids for _ in range(t)]
        with segments(frames, self._device, self._varlen) as cu_seqlens:
            output = self._model(pixels.to(self._dtype), sizes, cu_seqlens=cu_seqlens, **places)
        levels = [output.pooler_output, *output.deepstack_features]
        if len(items) == 1:
            return [tuple(levels)]
        merge = self._model.spatial_merge_unit
        rows = [len(item["pixel_values"]) // merge for item in items]
        # Copies, because a cached item must not keep the whole batch.
        return [
            tuple(part.clone() for part in parts)
            for parts in zip(*(level.split(rows) for level in levels), strict=True)
        ]

    def _places(self, sizes: Tensor) -> dict[str, Tensor]:
        """Each patch's place in its frame, on the host, where the sizes (n, 3) are."""
        from sglang_omni.models.qwen3_omni.components.reference import (
            get_vision_interpolation_indices_and_weights,
            get_vision_position_ids,
        )

        model = self._model
        indices, weights = get_vision_interpolation_indices_and_weights(
            sizes,
            num_grid_per_side=model.num_grid_per_side,
            mode=model.interpolation_mode,
            align_corners=model.interpolation_align_corners,
            spatial_merge_size=model.spatial_merge_size,
        )
        return {
            "interp_indices": indices,
            "interp_weights": weights,
            "position_ids": get_vision_position_ids(sizes, model.spatial_merge_size),
        }
