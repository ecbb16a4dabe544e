"""An audio encoder that several families hear with: clips to rows of the decoder's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.nn import functional as F

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.omni.packed_attention import load_varlen, segments
from sglang_omni.models.omni.payloads import AudioInput
from sglang_omni.models.omni.positions import convolved


def audio_tower(config: Mapping[str, Any]) -> Any:
    """transformers' ``Qwen3OmniMoeAudioEncoder`` without its weights, for a checkpoint's ``audio_config``."""
    from sglang_omni.models.omni.reference import (
        PACKED_ATTENTION,
        Qwen3OmniMoeAudioEncoder,
        Qwen3OmniMoeAudioEncoderConfig,
    )

    settings = {**config, "attn_implementation": PACKED_ATTENTION}
    return Qwen3OmniMoeAudioEncoder(Qwen3OmniMoeAudioEncoderConfig(**settings))


class AudioEncoder:
    """An audio tower for batches of clips; costs are in mel frames.

    A clip's output, (m, H), are the input rows of its placeholders. A batch has only clips with equal
    ``AudioInput.window_frames``, the length to which their pieces are padded.

    Args:
        model: A ``tower`` with its weights, in ``dtype`` on ``device``.
    """

    def __init__(self, model: Any, dtype: torch.dtype, device: str = "cpu") -> None:
        self._model = model
        self._dtype = dtype
        self._device = device
        self._piece = 2 * self._model.n_window
        heads, hidden = self._model.config.encoder_attention_heads, self._model.config.d_model
        self._varlen = load_varlen(device, dtype, heads, hidden // heads)

    @staticmethod
    def tower(config: Mapping[str, Any]) -> Callable[[], Any]:
        """Makes the tower of a checkpoint with this ``audio_config``, without its weights."""
        return lambda: audio_tower(config)

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str | Path,
        prefix: str,
        config: Mapping[str, Any],
        dtype: torch.dtype,
        device: str = "cpu",
    ) -> Self:
        """
        Args:
            prefix: What the names of its tensors begin with.
            config: The checkpoint's ``audio_config``.
        """
        return cls(load_component(model_path, prefix, cls.tower(config), dtype, device), dtype, device)

    def info(self, item: AudioInput) -> ItemInfo:
        return ItemInfo(item["key"], cost=item["input_features"].shape[1], group=item["window_frames"])

    @torch.inference_mode()
    def encode(self, items: Sequence[AudioInput]) -> list[ItemOutput]:
        window = items[0]["window_frames"]
        clips = [item["input_features"].split(self._piece, dim=1) for item in items]
        pieces = [piece for clip in clips for piece in clip]
        lengths = [piece.shape[1] for piece in pieces]
        padded = torch.stack([F.pad(piece, (0, window - piece.shape[1])) for piece in pieces])
        # Rows of each piece that are not padding.
        rows = np.arange(convolved(window)) < np.array([[convolved(length)] for length in lengths])
        counts = [sum(convolved(piece.shape[1]) for piece in clip) for clip in clips]
        reach = convolved(max(lengths)) * (self._model.n_window_infer // self._piece)
        attended = [min(reach, count - start) for count in counts for start in range(0, count, reach)]
        with segments(attended, self._device, self._varlen) as cu_seqlens:
            output = self._model(
                feature_lens=torch.tensor([item["input_features"].shape[1] for item in items]),
                padded_feature=padded.to(self._device).to(self._dtype),
                chunk_lengths=torch.tensor(lengths),
                valid_indices=torch.from_numpy(np.flatnonzero(rows)).to(self._device),
                cu_seqlens=cu_seqlens,
            )
        hidden = output.last_hidden_state
        # Copies, because a cached item must not keep the whole batch.
        return [(hidden,)] if len(items) == 1 else [(part.clone(),) for part in hidden.split(counts)]
