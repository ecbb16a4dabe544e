"""The audio encoder: clips to rows of the thinker's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.models.omni.audio_tower import AudioEncoder
from sglang_omni.models.omni.packed_attention import segments
from sglang_omni.models.omni.payloads import AudioInput
from sglang_omni.models.qwen2_5_omni.positions import convolved


class WindowedAudioEncoder(AudioEncoder):
    """An ``AudioEncoder`` over transformers' ``Qwen2_5OmniAudioEncoder``, for clips of any lengths.

    Attention stays within pieces of ``2 * n_window`` frames.
    """

    @staticmethod
    def tower(config: Mapping[str, Any]) -> Callable[[], Any]:
        from sglang_omni.models.qwen2_5_omni.components.reference import (
            PACKED_ATTENTION,
            Qwen2_5OmniAudioEncoder,
            Qwen2_5OmniAudioEncoderConfig,
        )

        settings = {**config, "attn_implementation": PACKED_ATTENTION}
        return lambda: Qwen2_5OmniAudioEncoder(Qwen2_5OmniAudioEncoderConfig(**settings))

    def info(self, item: AudioInput) -> ItemInfo:
        return ItemInfo(item["key"], cost=item["input_features"].shape[1])

    @torch.inference_mode()
    def encode(self, items: Sequence[AudioInput]) -> list[ItemOutput]:
        pieces = [piece for item in items for piece in item["input_features"].split(self._piece, dim=1)]
        lengths = [piece.shape[1] for piece in pieces]
        longest = max(lengths)
        padded = torch.stack([F.pad(piece, (0, longest - piece.shape[1])) for piece in pieces])
        rows = [convolved(length) for length in lengths]
        # Rows of each piece that are not padding.
        valid = np.arange(convolved(longest)) < np.array(rows)[:, None]
        clips = [convolved(item["input_features"].shape[1]) for item in items]
        counts = [clip // 2 for clip in clips]
        starts = np.cumsum([0, *clips[:-1]])
        # The first of each two rows that are averaged.
        firsts = [start + 2 * np.arange(count) for start, count in zip(starts, counts, strict=True)]
        with segments(rows, self._device, self._varlen) as cu_seqlens:
            output = self._model(
                feature_lens=torch.tensor([item["input_features"].shape[1] for item in items]),
                padded_feature=padded.to(self._device).to(self._dtype),
                chunk_lengths=torch.tensor(lengths).to(self._device),
                valid_indices=torch.from_numpy(np.flatnonzero(valid)).to(self._device),
                pool_indices=torch.from_numpy(np.concatenate(firsts)).to(self._device),
                cu_seqlens=cu_seqlens,
            )
        hidden = output.last_hidden_state
        # Copies, because a cached item must not keep the whole batch.
        return [(hidden,)] if len(items) == 1 else [(part.clone(),) for part in hidden.split(counts)]
