"""Qwen3-Omni's options of media, and its encoder's inputs of sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sglang_omni.models.omni.media import SAMPLE_RATE, MediaReader, content_key
from sglang_omni.models.omni.payloads import AudioInput
from sglang_omni.models.qwen3_omni.positions import PositionRules
from sglang_omni.proto import RequestError


class Qwen3MediaReader(MediaReader[PositionRules]):
    """A ``MediaReader`` for Qwen3-Omni."""

    processor_class = "Qwen3OmniMoeProcessor"
    # Options that it sets itself, beside those of a checkpoint.
    video_options: ClassVar[Mapping[str, Any]] = {
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
        "cap_pixels_per_frame": False,
    }
    default_fps = 1.0

    def _audios(self, clips: list[NDArray[np.float32]]) -> list[AudioInput]:
        """Computes all clips of a request at once: beside a longer clip, a short clip's end differs."""
        if not clips:
            return []
        output = self._features(
            clips,
            sampling_rate=SAMPLE_RATE,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        lengths = output["attention_mask"].sum(dim=1).tolist()
        window = min(max(lengths), 2 * self._rules.audio_window)
        items = []
        for features, length in zip(output["input_features"], lengths, strict=True):
            mel = features[:, :length].contiguous()
            key = content_key("audio", mel.numpy(), mel.shape, window)
            items.append(AudioInput(key=key, input_features=mel, window_frames=window))
        return items

    def _check_fps(self, fps: float) -> None:
        step = self._videos.temporal_patch_size / fps * self._rules.per_second
        if abs(step - round(step)) > 1e-6 or step < 0.5:
            whole = self._videos.temporal_patch_size * self._rules.per_second
            allowed = ", ".join(f"{whole / n:g}" for n in (13, 26, 52) if whole % n == 0 or n > whole)
            raise RequestError(
                f"video_fps {fps:g} puts frames between the model's positions, of which a second has "
                f"{self._rules.per_second:g}; take {whole:g} divided by a whole number, such as {allowed}",
                param="video_fps",
                code="invalid_value",
            )
