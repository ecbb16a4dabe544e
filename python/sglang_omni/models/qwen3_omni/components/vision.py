"""The vision encoder: images and videos to rows of the thinker's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from sglang_omni.models.omni.packed_attention import segments
from sglang_omni.models.omni.vision_tower import VisualEncoder


class VisionEncoder(VisualEncoder):
    """A ``VisualEncoder`` over transformers' ``Qwen3OmniMoeVisionEncoder``."""

    @staticmethod
    def _tower(config: Mapping[str, Any]) -> Callable[[], Any]:
        from sglang_omni.models.qwen3_omni.components.reference import (
            PACKED_ATTENTION,
            Qwen3OmniMoeVisionEncoder,
            Qwen3OmniMoeVisionEncoderConfig,
        )

        settings = {**config, "attn_implementation": PACKED_ATTENTION}
        return lambda: Qwen3OmniMoeVisionEncoder(Qwen3OmniMoeVisionEncoderConfig(**settings))

    def _levels(self, pixels: Tensor, sizes: Tensor, frames: Sequence[int]) -> list[Tensor]:
        places = {name: place.to(self._device) for name, place in self._places(sizes).items()}
        with segments(frames, self._device, self._varlen) as cu_seqlens:
            output = self._model(pixels, sizes, cu_seqlens=cu_seqlens, **places)
        return [output.pooler_output, *output.deepstack_features]

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
