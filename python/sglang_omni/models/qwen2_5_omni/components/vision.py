"""The vision encoder: images and videos to rows of the thinker's input, most layers within small windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.multimodal.packed_attention import load_varlen, segments
from sglang_omni.models.multimodal.payloads import VisualInput

_PREFIX = "thinker.visual."
# The ``segmentation`` of layers that see a whole frame.
_WHOLE_FRAMES = 1


class WindowedVisionEncoder:
    """transformers' ``Qwen2_5OmniVisionEncoder`` for batches of images and videos; costs are in patches.

    The output of an item are the input rows of its placeholders, (t * h * w / merge ** 2, H).
    """

    def __init__(
        self, model_path: str | Path, config: Mapping[str, Any], dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        """
        Args:
            config: ``vision_config`` of ``thinker_config``.
        """
        from sglang_omni.models.qwen2_5_omni.components.reference import (
            PACKED_ATTENTION,
            Qwen2_5OmniVisionEncoder,
            Qwen2_5OmniVisionEncoderConfig,
        )

        settings = {**config, "attn_implementation": PACKED_ATTENTION}

        def build() -> Qwen2_5OmniVisionEncoder:
            return Qwen2_5OmniVisionEncoder(Qwen2_5OmniVisionEncoderConfig(**settings))

        self._model = load_component(model_path, _PREFIX, build, dtype, device)
        for index in self._model.fullatt_block_indexes:
            if index < len(self._model.blocks):
                self._model.blocks[index].attn.segmentation = _WHOLE_FRAMES
        self._dtype = dtype
        self._device = device
        heads, hidden = self._model.config.num_heads, self._model.config.hidden_size
        self._varlen = load_varlen(device, dtype, heads, hidden // heads)

    def info(self, item: VisualInput) -> ItemInfo:
        return ItemInfo(item["key"], cost=len(item["pixel_values"]))

    @torch.inference_mode()
    def encode(self, items: Sequence[VisualInput]) -> list[ItemOutput]:
        from sglang_omni.models.qwen2_5_omni.components.reference import (
            get_vision_position_ids,
            get_vision_window_index,
        )

        model = self._model
        # Copied as they are: on its way to a GPU, a tensor of another type would be converted by the CPU.
        patches = [item["pixel_values"].to(self._device, non_blocking=True) for item in items]
        pixels = patches[0] if len(patches) == 1 else torch.cat(patches)
        grids = [item["grid_thw"] for item in items]
        # On the host, where the layout is computed.
        sizes = torch.tensor(grids)
        order, bounds = get_vision_window_index(
            sizes,
            spatial_merge_size=model.spatial_merge_size,
            window_size=model.window_size,
            patch_size=model.patch_size,
        )
        windows = bounds.diff().tolist()
        frames = [h * w for t, h, w in grids for _ in range(t)]
        with segments(windows, self._device, self._varlen, frames) as cu_seqlens:
            output = model(
                pixels.to(self._dtype),
                sizes,
                position_ids=get_vision_position_ids(sizes, model.spatial_merge_size).to(self._device),
                cu_seqlens=cu_seqlens,
                window_index=order.to(self._device),
                cu_window_seqlens=cu_seqlens,
            )
        rows = output.pooler_output
        if len(items) == 1:
            return [(rows,)]
        counts = [len(item["pixel_values"]) // model.spatial_merge_unit for item in items]
        # Copies, because a cached item must not keep the whole batch.
        return [(part.clone(),) for part in rows.split(counts)]
