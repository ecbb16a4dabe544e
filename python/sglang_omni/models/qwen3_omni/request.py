"""Request parameters of each Qwen3-Omni stage, combined with the checkpoint's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.multimodal import request as request_params
from sglang_omni.models.multimodal.request import Default
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint, TalkerSettings
from sglang_omni.models.qwen3_omni.request_params import REQUEST_PARAMS, STAGE_PARAMS
from sglang_omni.preprocessing.request import answers_in_speech, stage_params
from sglang_omni.preprocessing.request_params import check_request
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.scheduling.code2wav_scheduler import REFERENCE_CHUNKING, Chunking

# Defaults of transformers' ``generate`` for this model.
DEFAULT_SPEAKER = "ethan"
THINKER_MAX_NEW_TOKENS = 1024
_TALKER_DEFAULTS: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "max_new_tokens": 4096,
}


def thinker_sampling(
    request: OmniRequest, checkpoint: Qwen3OmniCheckpoint, instead: Mapping[str, Any] | None = None
) -> RequestSampling:
    """As of ``multimodal.request``."""
    return request_params.thinker_sampling(
        request,
        checkpoint.generation,
        STAGE_PARAMS,
        max_new_tokens=THINKER_MAX_NEW_TOKENS,
        instead=instead,
    )


def talker_sampling(request: OmniRequest, checkpoint: Qwen3OmniCheckpoint) -> RequestSampling:
    """As of ``multimodal.request``."""
    return request_params.talker_sampling(request, checkpoint.generation, STAGE_PARAMS, _TALKER_DEFAULTS)


def speaker_id(request: OmniRequest, talker: TalkerSettings) -> int:
    """The talker's token of the requested voice, whose name may be in any case.

    Raises:
        RequestError: The checkpoint has no such speaker.
    """
    params = stage_params(request, "talker")
    voice = params.get("speaker", params.get("voice"))
    if voice is None:
        return talker.speakers.get(DEFAULT_SPEAKER, next(iter(talker.speakers.values())))
    if not isinstance(voice, str) or voice.lower() not in talker.speakers:
        raise RequestError(
            f"there is no speaker {voice!r}; this checkpoint has {', '.join(sorted(talker.speakers))}",
            param="voice",
            code="unsupported_value",
        )
    return talker.speakers[voice.lower()]


def check_params(request: OmniRequest, checkpoint: Qwen3OmniCheckpoint, *, has_talker: bool) -> None:
    """Checks a request's parameters for all stages, before anything is computed.

    Args:
        has_talker: Whether the pipeline speaks.

    Raises:
        RequestError: The pipeline cannot speak and the request wants speech, or a parameter is not
            acceptable.
    """
    check_request(request, REQUEST_PARAMS)
    thinker_sampling(request, checkpoint)
    if not answers_in_speech(request):
        return
    if not has_talker or checkpoint.talker is None:
        raise RequestError(
            "modalities: this model answers in text only", param="modalities", code="unsupported_value"
        )
    speaker_id(request, checkpoint.talker)
    talker_sampling(request, checkpoint)
    code2wav_chunking(request, REFERENCE_CHUNKING)


def code2wav_chunking(request: OmniRequest, default: Chunking) -> Chunking:
    """``stage_params: {"code2wav": {"chunking": "gapless" | "reference", "chunk_size": N,
    "left_context_size": N}}``, with the stage's ``default``; sizes are in frames.

    Raises:
        RequestError: A value is out of its range.
    """
    where = "stage_params.code2wav"
    own = request_params.own_params(request, "code2wav", STAGE_PARAMS)
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
