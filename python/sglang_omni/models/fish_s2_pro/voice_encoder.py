"""The voice_encoder stage: recordings of voices to their codes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.fish_s2_pro.components.codec import FishCodecEncoder


class VoiceEncoder:
    """An ``Encoder`` of ``VoiceRecording``; costs are in frames.

    Args:
        frames_at_once: Of one recording; a longer one is computed piece by piece.
    """

    def __init__(self, codec: FishCodecEncoder, frames_at_once: int) -> None:
        self._codec = codec
        self._frames_at_once = frames_at_once

    def info(self, item: VoiceRecording) -> ItemInfo:
        return ItemInfo(item["key"], cost=-(-len(item["samples"]) // self._codec.frame_length))

    @torch.inference_mode()
    def encode(self, items: Sequence[VoiceRecording]) -> list[ItemOutput]:
        frames = max(1, self._frames_at_once // len(items))
        return [(codes,) for codes in self._codec.encode([item["samples"] for item in items], frames)]
