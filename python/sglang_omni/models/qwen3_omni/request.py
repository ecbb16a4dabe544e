"""Request parameters of each Qwen3-Omni stage, combined with the checkpoint's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint, TalkerSettings
from sglang_omni.models.qwen3_omni.request_params import REQUEST_PARAMS, STAGE_PARAMS, TALKER_SAMPLING
from sglang_omni.preprocessing.request import answers_in_speech, mapping_param, stage_params
from sglang_omni.preprocessing.request_params import check_names, check_request
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.scheduling.code2wav_scheduler import REFERENCE_CHUNKING, Chunking

Default = TypeVar("Default")

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
    """The request's parameters, with defaults from ``generation_config.json``.

    Args:
        instead: Parameters that take the place of the request's own.

    Raises:
        RequestError: A parameter is out of its range; ``param`` is its name in the request.
    """
    defaults = _generation_settings(checkpoint.generation, prefix="")
    defaults |= _generation_settings(checkpoint.generation, prefix="thinker_")
    given = _given({**stage_params(request, "thinker"), **(instead or {})})
    params = {"max_new_tokens": THINKER_MAX_NEW_TOKENS, **defaults, **given}
    return _sampling(params, "thinker", _own(request, "thinker"), prefix="")


def talker_sampling(request: OmniRequest, checkpoint: Qwen3OmniCheckpoint) -> RequestSampling:
    """The request's ``talker_*`` parameters and its seed, with the checkpoint's defaults.

    Raises:
        RequestError: A parameter is out of its range; ``param`` is its name in the request.
    """
    defaults = {**_TALKER_DEFAULTS, **_generation_settings(checkpoint.generation, prefix="talker_")}
    prefixed = {name: request.params.get(f"talker_{name}") for name in TALKER_SAMPLING}
    own = _own(request, "talker")
    params = {**defaults, "seed": request.params.get("seed"), **_given(prefixed), **_given(own)}
    return _sampling(params, "talker", own, prefix="talker_")


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
    own = _own(request, "code2wav")
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


def _own(request: OmniRequest, stage: str) -> Mapping[str, Any]:
    """``stage_params`` of one stage.

    Raises:
        RequestError: The stage does not take one of the parameters.
    """
    own = mapping_param(mapping_param(request.params, "stage_params"), stage, "stage_params.")
    check_names(stage, own, STAGE_PARAMS.get(stage, ()))
    return own


def _sampling(
    params: Mapping[str, Any], stage: str, own: Mapping[str, Any], *, prefix: str
) -> RequestSampling:
    """``params``, checked; errors name a parameter in ``stage_params``, or by ``prefix`` and its name."""
    try:
        return RequestSampling.from_params(params)
    except RequestError as exc:
        name = exc.param or ""
        where = f"stage_params.{stage}.{name}" if name in own else prefix + name
        if where == name:
            raise
        raise RequestError(f"{where}: {exc.message}", param=where, code=exc.code) from exc


def _frames(own: Mapping[str, Any], name: str, least: int, default: Default) -> int | Default:
    value = own.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 100_000:
        where = f"stage_params.code2wav.{name}"
        raise RequestError(
            f"{where} must be an integer from {least} to 100000, got {value!r}",
            param=where,
            code="invalid_value",
        )
    return value


def _generation_settings(generation: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    settings = _given({name: generation.get(prefix + name) for name in TALKER_SAMPLING})
    if generation.get(f"{prefix}do_sample") is False:
        settings["temperature"] = 0.0
    return settings


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
