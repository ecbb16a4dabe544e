"""The stages of encoders, for models that see and hear; each runs in its stage's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from sglang_omni.models.loading import placement
from sglang_omni.models.omni.payloads import AudioInput, AudioOutput, VisualInput, VisualOutput
from sglang_omni.proto import StagePayload

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.encoder import Encoder, EncoderRequest
    from sglang_omni.engines.options import Dtype
    from sglang_omni.models.omni.family import OmniFamily
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


class EncoderArgs(TypedDict, total=False):
    """Of any encoder.

    Attributes:
        dtype: Of the computation, whatever the checkpoint's is; float32 on a CPU and bfloat16 on a GPU by
            default.
        gpu_id: The GPU; None for the CPU.
        num_threads: torch's threads in this process; None leaves torch's default.
        cache_bytes: Size of the cache of outputs for repeated items; 0 for none. By default 512 MB of
            pictures, 256 MB of clips.
    """

    dtype: Dtype | None
    gpu_id: int | None
    num_threads: int | None
    cache_bytes: int


class ImageEncoderArgs(EncoderArgs, total=False):
    """Of the encoder of images and videos.

    Attributes:
        max_batch_patches: Limit of the patches of the images and videos in one batch; by default 16384.
    """

    max_batch_patches: int


class AudioEncoderArgs(EncoderArgs, total=False):
    """Of the encoder of sound.

    Attributes:
        max_batch_frames: Limit of the mel frames (100 a second) of the clips in one batch; by default 30000.
    """

    max_batch_frames: int


def image_encoder_stage(
    family: OmniFamily, model_path: str, **args: Unpack[ImageEncoderArgs]
) -> OmniScheduler[EncoderRequest]:
    """The stage from ``{"visuals": [VisualInput]}`` to ``{"visuals": [VisualOutput]}``."""
    checkpoint = family.checkpoint.from_dir(model_path)
    config = checkpoint.thinker_config["vision_config"]
    where = torch_placement(args.get("dtype"), args.get("gpu_id"))
    encoder = family.vision_encoder(checkpoint.path, config, *where)
    return encoder_scheduler(
        encoder,
        "visuals",
        visual_outputs,
        args.get("cache_bytes", 512_000_000),
        args.get("max_batch_patches", 16_384),
        args.get("num_threads"),
        tiny_picture(config, config.get("patch_size", family.patch_size)),
    )


def audio_encoder_stage(
    family: OmniFamily, model_path: str, **args: Unpack[AudioEncoderArgs]
) -> OmniScheduler[EncoderRequest]:
    """The stage from ``{"audios": [AudioInput]}`` to ``{"audios": [AudioOutput]}``."""
    checkpoint = family.checkpoint.from_dir(model_path)
    config = checkpoint.thinker_config["audio_config"]
    where = torch_placement(args.get("dtype"), args.get("gpu_id"))
    encoder = family.audio_encoder.from_checkpoint(checkpoint.path, "thinker.audio_tower.", config, *where)
    return encoder_scheduler(
        encoder,
        "audios",
        audio_outputs,
        args.get("cache_bytes", 256_000_000),
        args.get("max_batch_frames", 30_000),
        args.get("num_threads"),
        _tiny_clip(config, family),
    )


def _tiny_clip(config: Mapping[str, Any], family: OmniFamily) -> AudioInput:
    """A clip of one full piece for an encoder with this ``audio_config``."""
    import torch

    frames = 2 * config.get("n_window", family.audio_window)
    features = torch.zeros(config.get("num_mel_bins", 128), frames)
    return AudioInput(
        key=b"warm-up", input_features=features, window_frames=frames if family.pads_audio else 0
    )


def visual_outputs(payload: StagePayload, request: EncoderRequest) -> StagePayload:
    """``{"visuals": [VisualOutput]}``, from the rows and deepstack levels of each visual."""
    visuals = [VisualOutput(embeds=rows, deepstack=list(levels)) for rows, *levels in request.outputs]
    return StagePayload(payload.request_id, payload.request, {"visuals": visuals})


def audio_outputs(payload: StagePayload, request: EncoderRequest) -> StagePayload:
    """``{"audios": [AudioOutput]}``, from the rows of each clip."""
    audios = [AudioOutput(embeds=rows) for (rows,) in request.outputs]
    return StagePayload(payload.request_id, payload.request, {"audios": audios})


def torch_placement(dtype: Dtype | None, gpu_id: int | None) -> tuple[torch.dtype, str]:
    """The dtype and device of an encoder."""
    from sglang_omni.model_runner.loader import DTYPES

    computed_in, device = placement(dtype, gpu_id)
    return DTYPES[computed_in], device


def tiny_picture(config: Mapping[str, Any], patch_size: int) -> VisualInput:
    """An image of 2 x 2 tokens, for the warm-up of an encoder with this ``vision_config``."""
    import torch

    side = 2 * config.get("spatial_merge_size", 2)
    numbers = config.get("in_channels", 3) * config.get("temporal_patch_size", 2) * patch_size**2
    return VisualInput(
        kind="image",
        key=b"warm-up",
        pixel_values=torch.zeros(side * side, numbers),
        grid_thw=(1, side, side),
        seconds_per_grid=None,
    )


def encoder_scheduler(
    encoder: Encoder,
    name: str,
    result: Callable[[StagePayload, EncoderRequest], StagePayload],
    cache_bytes: int,
    max_batch_cost: int,
    num_threads: int | None,
    tiny_item: object,
) -> OmniScheduler[EncoderRequest]:
    """The scheduler of an encoder's stage.

    Args:
        encoder: The model.
        name: Of the items in the payload's data.
        result: ``visual_outputs`` or ``audio_outputs``.
        cache_bytes: Size of the cache of outputs; 0 for none.
        max_batch_cost: Limit of the items of one batch, in the encoder's unit.
        num_threads: torch's threads in this process; None leaves torch's default.
        tiny_item: An item for the warm-up.
    """
    import torch

    from sglang_omni.engines.cache import OutputCache
    from sglang_omni.engines.encoder import EncoderEngine, EncoderRequest
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    engine = EncoderEngine(encoder, OutputCache(cache_bytes), max_batch_cost=max_batch_cost)

    def build(payload: StagePayload) -> EncoderRequest:
        return EncoderRequest(payload.request_id, payload.data[name])

    return OmniScheduler(
        engine, build, result, warm_up_requests=lambda: [EncoderRequest("warm-up", [tiny_item])]
    )
