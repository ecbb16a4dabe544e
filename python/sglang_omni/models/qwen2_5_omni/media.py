"""Qwen2.5-Omni's options of media, and its encoder's inputs of sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_omni.models.omni.media import SAMPLE_RATE, MediaReader, content_key
from sglang_omni.models.omni.payloads import AudioInput
from sglang_omni.models.qwen2_5_omni.positions import Qwen25PositionRules
from sglang_omni.proto import RequestError

# Frames a second that transformers takes a video to have, and that the model was made for.
VIDEO_FPS = 2.0


class Qwen25MediaReader(MediaReader[Qwen25PositionRules]):
    """A ``MediaReader`` for Qwen2.5-Omni.

    transformers pads every clip with silence to the longest that the model takes, 300 s; here each has as
    much silence behind it as its last frames see, which makes the same frames.
    """

    processor_class = "Qwen2_5OmniProcessor"
    # Options that it sets itself, beside those of a checkpoint.
    video_options: ClassVar[Mapping[str, Any]] = {
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
        "cap_pixels_per_frame": False,
    }
    default_fps = VIDEO_FPS

    def _audios(self, clips: list[NDArray[np.float32]]) -> list[AudioInput]:
        return [self._clip_input(clip) for clip in clips]

    def _clip_input(self, clip: NDArray[np.float32]) -> AudioInput:
        longest = int(self._features.n_samples)
        if len(clip) > longest:
            raise RequestError(
                f"a clip is {len(clip) / SAMPLE_RATE:g} s long; this model hears at most "
                f"{longest / SAMPLE_RATE:g} s",
                param="messages",
                code="audio_too_long",
            )
        hop = self._hop
        frames = -(-len(clip) // hop)
        output = self._features(
            [clip],
            sampling_rate=SAMPLE_RATE,
            padding="max_length",
            max_length=min(longest, frames * hop + self._features.n_fft // hop * hop + hop),
            truncation=False,
            return_tensors="pt",
        )
        mel: torch.Tensor = output["input_features"][0, :, :frames].contiguous()
        # The encoder's output does not depend on the length to which pieces are padded.
        key = content_key("audio", mel.numpy(), mel.shape)
        return AudioInput(key=key, input_features=mel, window_frames=0)

    def _check_fps(self, fps: float) -> None:
        """Frames between positions go to the one before them, so that every rate will do."""
