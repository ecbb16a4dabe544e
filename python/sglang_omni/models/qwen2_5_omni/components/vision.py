"""The vision encoder: images and videos to rows of the thinker's input, most layers within small windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_omni.models.omni.packed_attention import segments
from sglang_omni.models.omni.vision_tower import VisualEncoder

# The ``segmentation`` of layers that see a whole frame.
_WHOLE_FRAMES = 1


class WindowedVisionEncoder(VisualEncoder):
    """A ``VisualEncoder`` over transformers' ``Qwen2_5OmniVisionEncoder``."""

    def __init__(
        self, model_path: str | Path, config: Mapping[str, Any], dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        super().__init__(model_path, config, dtype, device)
        for index in self._model.fullatt_block_indexes:
            if index < len(self._model.blocks):
                self._model.blocks[index].attn.segmentation = _WHOLE_FRAMES

    @staticmethod
    def _tower(config: Mapping[str, Any]) -> Callable[[], Any]:
        from sglang_omni.models.qwen2_5_omni.components.reference import (
            PACKED_ATTENTION,
            Qwen2_5OmniVisionEncoder,
            Qwen2_5OmniVisionEncoderConfig,
        )

        settings = {**config, "attn_implementation": PACKED_ATTENTION}
        return lambda: Qwen2_5OmniVisionEncoder(Qwen2_5OmniVisionEncoderConfig(**settings))

    def _levels(self, pixels: Tensor, sizes: Tensor, frames: Sequence[int]) -> list[Tensor]:
        from sglang_omni.models.qwen2_5_omni.components.reference import (
            get_vision_position_ids,
            get_vision_window_index,
        )

        model = self._model
        order, bounds = get_vision_window_index(
            sizes,
            spatial_merge_size=model.spatial_merge_size,
            window_size=model.window_size,
            patch_size=model.patch_size,
        )
        windows = bounds.diff().tolist()
        with segments(windows, self._device, self._varlen, frames) as cu_seqlens:
            output = model(
                pixels,
                sizes,
                position_ids=get_vision_position_ids(sizes, model.spatial_merge_size).to(self._device),
                cu_seqlens=cu_seqlens,
                window_index=order.to(self._device),
                cu_window_seqlens=cu_seqlens,
            )
        return [output.pooler_output]
