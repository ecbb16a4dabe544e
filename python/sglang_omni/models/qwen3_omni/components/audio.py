"""The audio encoder: clips to rows of the thinker's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.qwen3_omni.payloads import AudioInput
from sglang_omni.models.qwen3_omni.positions import convolved

_PREFIX = "thinker.audio_tower."


class AudioEncoder:
    """transformers' ``Qwen3OmniMoeAudioEncoder`` for batches of clips; costs are in mel frames.

    A clip's output, (m, H), are the input rows of its placeholders. A batch has only clips with equal
    ``AudioInput.window_frames``, the length to which their pieces are padded.
    """

    def __init__(
        self, model_path: str | Path, config: Mapping[str, Any], dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        """
        Args:
            config: ``audio_config`` of ``thinker_config``.
        """
        from sglang_omni.models.qwen3_omni.components.reference import (
            Qwen3OmniMoeAudioEncoder,
            Qwen3OmniMoeAudioEncoderConfig,
        )

        def build() -> Qwen3OmniMoeAudioEncoder:
            return Qwen3OmniMoeAudioEncoder(Qwen3OmniMoeAudioEncoderConfig(**config))

        self._model = load_component(model_path, _PREFIX, build, dtype, device)
        self._dtype = dtype
        self._device = device
        self._piece = 2 * self._model.n_window

    def info(self, item: AudioInput) -> ItemInfo:
        return ItemInfo(item["key"], cost=item["input_features"].shape[1], group=item["window_frames"])

    @torch.inference_mode()
    def encode(self, items: Sequence[AudioInput]) -> list[ItemOutput]:
        window = items[0]["window_frames"]
        pieces, lengths = [], []
        for item in items:
            for piece in item["input_features"].split(self._piece, dim=1):
                lengths.append(piece.shape[1])
                pieces.append(F.pad(piece, (0, window - piece.shape[1])))
        frames = torch.tensor([item["input_features"].shape[1] for item in items], device=self._device)
        chunks = torch.tensor(lengths, device=self._device)
        # Rows of each piece that are not padding.
        rows = torch.arange(convolved(window), device=self._device) < convolved(chunks).unsqueeze(1)
        output = self._model(
            feature_lens=frames,
            padded_feature=torch.stack(pieces).to(self._device, self._dtype),
            chunk_lengths=chunks,
            valid_indices=rows.flatten().nonzero().squeeze(1),
        )
        counts = [
            sum(convolved(piece.shape[1]) for piece in item["input_features"].split(self._piece, dim=1))
            for item in items
        ]
        return [(part.clone(),) for part in output.last_hidden_state.split(counts)]
