"""The stage factories of Qwen3-Omni's encoders; each runs, and loads its model, in its stage's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang_omni.models.multimodal.encoding import (
    audio_outputs,
    encoder_scheduler,
    tiny_picture,
    torch_placement,
    visual_outputs,
)
from sglang_omni.models.multimodal.payloads import AudioInput

if TYPE_CHECKING:
    from sglang_omni.engines.encoder import EncoderRequest
    from sglang_omni.engines.options import Dtype
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


def create_image_encoder(
    model_path: str,
    *,
    dtype: Dtype | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    cache_bytes: int = 512_000_000,
    max_batch_patches: int = 16_384,
) -> OmniScheduler[EncoderRequest]:
    """The stage from ``{"visuals": [VisualInput]}`` to ``{"visuals": [VisualOutput]}``.

    Args:
        model_path: Directory of a Qwen3-Omni checkpoint.
        dtype: Of the computation, whatever the checkpoint's is; float32 on a CPU and bfloat16 on a GPU by
            default.
        gpu_id: The GPU; None for the CPU.
        num_threads: torch's threads in this process; None leaves torch's default.
        cache_bytes: Size of the cache of outputs for repeated pictures; 0 for none.
        max_batch_patches: Limit of the patches of the images and videos in one batch.
    """
    from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
    from sglang_omni.models.qwen3_omni.components.vision import VisionEncoder

    checkpoint = Qwen3OmniCheckpoint.from_dir(model_path)
    config = checkpoint.thinker_config["vision_config"]
    encoder = VisionEncoder(checkpoint.path, config, *torch_placement(dtype, gpu_id))

    return encoder_scheduler(
        encoder,
        "visuals",
        visual_outputs,
        cache_bytes,
        max_batch_patches,
        num_threads,
        tiny_picture(config, config["patch_size"]),
    )


def create_audio_encoder(
    model_path: str,
    *,
    dtype: Dtype | None = None,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    cache_bytes: int = 256_000_000,
    max_batch_frames: int = 30_000,
) -> OmniScheduler[EncoderRequest]:
    """The stage from ``{"audios": [AudioInput]}`` to ``{"audios": [AudioOutput]}``.

    Args:
        model_path: Directory of a Qwen3-Omni checkpoint.
        dtype: Of the computation, whatever the checkpoint's is; float32 on a CPU and bfloat16 on a GPU by
            default.
        gpu_id: The GPU; None for the CPU.
        num_threads: torch's threads in this process; None leaves torch's default.
        cache_bytes: Size of the cache of outputs for repeated clips; 0 for none.
        max_batch_frames: Limit of the mel frames (100 a second) of the clips in one batch.
    """
    from sglang_omni.models.multimodal.audio_tower import AudioEncoder
    from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint

    checkpoint = Qwen3OmniCheckpoint.from_dir(model_path)
    config = checkpoint.thinker_config["audio_config"]
    encoder = AudioEncoder.from_checkpoint(
        checkpoint.path, "thinker.audio_tower.", config, *torch_placement(dtype, gpu_id)
    )

    return encoder_scheduler(
        encoder, "audios", audio_outputs, cache_bytes, max_batch_frames, num_threads, _tiny_clip(config)
    )


def _tiny_clip(config: Mapping[str, Any]) -> AudioInput:
    """A clip of one full piece for an encoder with this ``audio_config``."""
    import torch

    frames = 2 * config.get("n_window", 50)
    features = torch.zeros(config["num_mel_bins"], frames)
    return AudioInput(key=b"warm-up", input_features=features, window_frames=frames)
