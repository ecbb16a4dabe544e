"""The stages of encoders, for models that see and hear; each runs in its stage's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sglang_omni.models.loading import placement
from sglang_omni.models.multimodal.payloads import AudioOutput, VisualInput, VisualOutput
from sglang_omni.proto import StagePayload

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.encoder import Encoder, EncoderRequest
    from sglang_omni.engines.options import Dtype
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


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
