"""Request parameters of a pipeline's stages, combined with the checkpoint's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.omni.checkpoint import MediaCheckpoint
from sglang_omni.models.omni.request_params import TALKER, TALKER_SAMPLING
from sglang_omni.preprocessing.request import answers_in_speech, mapping_param, stage_params
from sglang_omni.preprocessing.request_params import TEXT_SAMPLING, check_names
from sglang_omni.proto import OmniRequest, RequestError

# Names in ``generation_config.json``, without a prefix, that say how tokens are drawn.
_DRAWS = ("do_sample", "temperature", "top_p", "top_k", "min_p")
Default = TypeVar("Default")


def thinker_sampling(
    request: OmniRequest, checkpoint: MediaCheckpoint[Any, Any], instead: Mapping[str, Any] | None = None
) -> RequestSampling:
    """The request's parameters for the thinker, with the checkpoint's defaults.

    Args:
        instead: Parameters that take the place of the request's own.

    Raises:
        RequestError: A parameter is out of its range; ``param`` is its name in the request.
    """
    asked = given({**stage_params(request, "thinker"), **(instead or {})})
    params = {**thinker_defaults(checkpoint), **asked}
    return checked_sampling(params, "thinker", own_params(request, "thinker", TEXT_SAMPLING), prefix="")


def thinker_defaults(checkpoint: MediaCheckpoint[Any, Any]) -> dict[str, Any]:
    """The thinker's parameters for a request that sets none: those of ``generation_config.json``.

    If it does not say how tokens are drawn, as in the published checkpoints, its authors' recommendation
    does. Without ``max_new_tokens``, an answer may fill the context.
    """
    stored = checkpoint.generation
    defaults = generation_settings(stored, prefix="") | generation_settings(stored, prefix="thinker_")
    if any(stored.get(prefix + name) is not None for prefix in ("", "thinker_") for name in _DRAWS):
        return defaults
    return {**checkpoint.recommended_sampling, **defaults}


def talker_sampling(request: OmniRequest, checkpoint: MediaCheckpoint[Any, Any]) -> RequestSampling:
    """The request's ``talker_*`` parameters and its seed, with the checkpoint's defaults.

    Raises:
        RequestError: A parameter is out of its range; ``param`` is its name in the request.
    """
    stored = generation_settings(checkpoint.generation, prefix="talker_")
    prefixed = {name: request.params.get(f"talker_{name}") for name in TALKER_SAMPLING}
    own = own_params(request, "talker", TALKER)
    asked = {"seed": request.params.get("seed"), **given(prefixed), **given(own)}
    return checked_sampling(
        {**checkpoint.talker_defaults, **stored, **asked}, "talker", own, prefix="talker_"
    )


def requested_voice(request: OmniRequest, checkpoint: MediaCheckpoint[Any, Any]) -> Any:
    """What a checkpoint has for the requested voice, whose name may be in any case.

    For a request that names none, that is the default voice, or the first one if the checkpoint lacks it.

    Raises:
        RequestError: The checkpoint has no such voice.
    """
    params, voices = stage_params(request, "talker"), checkpoint.voices
    voice = params.get("speaker", params.get("voice"))
    if voice is None:
        return voices.get(checkpoint.default_voice, next(iter(voices.values())))
    if not isinstance(voice, str) or voice.lower() not in voices:
        raise RequestError(
            f"there is no speaker {voice!r}; this checkpoint has {', '.join(sorted(voices))}",
            param="voice",
            code="unsupported_value",
        )
    return voices[voice.lower()]


def is_spoken(request: OmniRequest, *, has_talker: bool) -> bool:
    """True if the answer is to be spoken.

    Raises:
        RequestError: It is, and there is no talker.
    """
    if not answers_in_speech(request):
        return False
    if not has_talker:
        raise RequestError(
            "modalities: this model answers in text only", param="modalities", code="unsupported_value"
        )
    return True


def own_params(request: OmniRequest, stage: str, takes: Sequence[str]) -> Mapping[str, Any]:
    """``stage_params`` of one stage.

    Raises:
        RequestError: The stage does not take one of the parameters.
    """
    own = mapping_param(mapping_param(request.params, "stage_params"), stage, "stage_params.")
    check_names(stage, own, takes)
    return own


def checked_sampling(
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


def int_param(
    own: Mapping[str, Any], stage: str, name: str, least: int, most: int, default: Default
) -> int | Default:
    """A whole number of a stage's own parameters.

    Raises:
        RequestError: It is no integer from ``least`` to ``most``.
    """
    value = own.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        where = f"stage_params.{stage}.{name}"
        raise RequestError(
            f"{where} must be an integer from {least} to {most}, got {value!r}",
            param=where,
            code="invalid_value",
        )
    return value


def generation_settings(generation: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The sampling parameters in ``generation_config.json`` whose names begin with ``prefix``."""
    settings = given({name: generation.get(prefix + name) for name in TALKER_SAMPLING})
    if generation.get(f"{prefix}do_sample") is False:
        settings["temperature"] = 0.0
    return settings


def given(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in params.items() if value is not None}
