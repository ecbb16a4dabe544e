"""Request parameters of a pipeline's stages, combined with the checkpoint's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.multimodal.request_params import TALKER_SAMPLING
from sglang_omni.preprocessing.request import mapping_param, stage_params
from sglang_omni.preprocessing.request_params import check_names
from sglang_omni.proto import OmniRequest, RequestError

Default = TypeVar("Default")
# Parameters in ``stage_params``, by stage; other stages have none.
StageParams = Mapping[str, tuple[str, ...]]


def thinker_sampling(
    request: OmniRequest,
    generation: Mapping[str, Any],
    takes: StageParams,
    *,
    max_new_tokens: int,
    instead: Mapping[str, Any] | None = None,
) -> RequestSampling:
    """The request's parameters for the thinker, with defaults from ``generation_config.json``.

    Args:
        generation: The whole ``generation_config.json``.
        takes: What each stage takes.
        max_new_tokens: If neither tells.
        instead: Parameters that take the place of the request's own.

    Raises:
        RequestError: A parameter is out of its range; ``param`` is its name in the request.
    """
    defaults = generation_settings(generation, prefix="")
    defaults |= generation_settings(generation, prefix="thinker_")
    asked = given({**stage_params(request, "thinker"), **(instead or {})})
    params = {"max_new_tokens": max_new_tokens, **defaults, **asked}
    return checked_sampling(params, "thinker", own_params(request, "thinker", takes), prefix="")


def talker_sampling(
    request: OmniRequest, generation: Mapping[str, Any], takes: StageParams, defaults: Mapping[str, Any]
) -> RequestSampling:
    """The request's ``talker_*`` parameters and its seed, with the checkpoint's defaults.

    Args:
        generation: The whole ``generation_config.json``.
        takes: What each stage takes.
        defaults: If neither tells.

    Raises:
        RequestError: A parameter is out of its range; ``param`` is its name in the request.
    """
    stored = generation_settings(generation, prefix="talker_")
    prefixed = {name: request.params.get(f"talker_{name}") for name in TALKER_SAMPLING}
    own = own_params(request, "talker", takes)
    asked = {"seed": request.params.get("seed"), **given(prefixed), **given(own)}
    return checked_sampling({**defaults, **stored, **asked}, "talker", own, prefix="talker_")


def own_params(request: OmniRequest, stage: str, takes: StageParams) -> Mapping[str, Any]:
    """``stage_params`` of one stage.

    Raises:
        RequestError: The stage does not take one of the parameters.
    """
    own = mapping_param(mapping_param(request.params, "stage_params"), stage, "stage_params.")
    check_names(stage, own, takes.get(stage, ()))
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
