"""Request parameters of Qwen3-Omni's codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.omni import request as request_params
from sglang_omni.models.omni.request import Default
from sglang_omni.models.qwen3_omni.request_params import CODE2WAV
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.scheduling.code2wav_scheduler import REFERENCE_CHUNKING, Chunking


def check_codec(request: OmniRequest, sampling: RequestSampling) -> None:
    """
    Raises:
        RequestError: A parameter of the codec's stage is out of its range.
    """
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
