"""Request parameters of each Qwen3-Omni stage, combined with the checkpoint's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.multimodal import request as request_params
from sglang_omni.models.multimodal.request import Default
from sglang_omni.models.qwen3_omni.components.checkpoint import (
    DEFAULT_SPEAKER,
    Qwen3OmniCheckpoint,
    TalkerSettings,
)
from sglang_omni.models.qwen3_omni.request_params import CODE2WAV, REQUEST_PARAMS, TALKER_DEFAULTS
from sglang_omni.preprocessing.request_params import check_request
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.scheduling.code2wav_scheduler import REFERENCE_CHUNKING, Chunking


def talker_sampling(request: OmniRequest, checkpoint: Qwen3OmniCheckpoint) -> RequestSampling:
    """As of ``multimodal.request``, with this model's defaults."""
    return request_params.talker_sampling(request, checkpoint.generation, TALKER_DEFAULTS)


def speaker_id(request: OmniRequest, talker: TalkerSettings) -> int:
    """The talker's token of the requested voice, whose name may be in any case.

    Raises:
        RequestError: The checkpoint has no such speaker.
    """
    return request_params.requested_voice(request, talker.speakers, DEFAULT_SPEAKER)


def check_params(request: OmniRequest, checkpoint: Qwen3OmniCheckpoint, *, has_talker: bool) -> None:
    """Checks a request's parameters for all stages, before anything is computed.

    Args:
        has_talker: Whether the pipeline speaks.

    Raises:
        RequestError: The pipeline cannot speak and the request wants speech, or a parameter is not
            acceptable.
    """
    check_request(request, REQUEST_PARAMS)
    request_params.thinker_sampling(request, checkpoint)
    if request_params.is_spoken(request, has_talker=has_talker and checkpoint.talker is not None):
        speaker_id(request, checkpoint.require_talker())
        talker_sampling(request, checkpoint)
        code2wav_chunking(request, REFERENCE_CHUNKING)


def code2wav_chunking(request: OmniRequest, default: Chunking) -> Chunking:
    """``stage_params: {"code2wav": {"chunking": "gapless" | "reference", "chunk_size": N,
    "left_context_size": N}}``, with the stage's ``default``; sizes are in frames.

    Raises:
        RequestError: A value is out of its range.
    """
    where = "stage_params.code2wav"
    own = request_params.own_params(request, "code2wav", CODE2WAV)
    kind = own.get("chunking", "gapless")
    if kind not in ("gapless", "reference"):
        raise RequestError(
            f"{where}.chunking must be 'gapless' or 'reference', got {kind!r}",
            param=f"{where}.chunking",
            code="invalid_value",
        )
    chunking = default if kind == "gapless" else REFERENCE_CHUNKING
    chunking = chunking._replace(
        chunk_size=_frames(own, "chunk_size", 1, chunking.chunk_size),
        left_context_size=_frames(own, "left_context_size", 0, chunking.left_context_size),
    )
    return chunking if kind == "gapless" else chunking._replace(first_chunk_size=chunking.chunk_size)


def _frames(own: Mapping[str, Any], name: str, least: int, default: Default) -> int | Default:
    return request_params.int_param(own, "code2wav", name, least, 100_000, default)
