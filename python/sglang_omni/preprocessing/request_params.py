"""Declaration and check of a pipeline's request parameters: all that are not declared are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.config.nearest import nearest
from sglang_omni.preprocessing.param_values import check_value
from sglang_omni.preprocessing.request import answers_in_speech, mapping_param, task_of
from sglang_omni.proto import OmniRequest, RequestError

# ``TEXT_SAMPLING`` are the fields of ``model_runner.RequestSampling``, repeated for configs, which must not
# import torch.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "stop", "stop_token_ids", "max_new_tokens", "ignore_eos"),
)
# Those that make no sense for a codec's tokens.
TEXT_SAMPLING = (
    *SAMPLING,
    *("logit_bias", "logprobs", "prompt_logprobs", "json_schema", "regex", "ebnf", "structural_tag"),
)
# Those of a chat: what its prompt is made of.
CHAT = (
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message", "reasoning_effort"),
    *("tools", "tool_choice", "parallel_tool_calls"),
)
# Parameters of every request; those in stage_params are checked by stage.
_ALWAYS = ("stream", "stage_params")


@dataclass(frozen=True)
class TaskParams:
    """The parameters of one task.

    Attributes:
        general: Parameters of the request itself.
        stages: Parameters in ``stage_params``, by stage; other stages have none.
        spoken: Those of the parameters and stages that need a spoken answer.
    """

    general: tuple[str, ...] = ()
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spoken: tuple[str, ...] = ()


# By task. A pipeline's config has them in its attribute ``request_params``, by which the server refuses
# requests; the first stage checks requests that do not come through a server.
RequestParams = Mapping[str, TaskParams]


def check_request(request: OmniRequest, takes: RequestParams) -> None:
    """
    Raises:
        RequestError: A parameter has no effect on the request's task, or cannot have its value.
    """
    check_params(task_of(request), request.params, takes, spoken=answers_in_speech(request))


def check_params(task: str, params: Mapping[str, Any], takes: RequestParams, *, spoken: bool) -> None:
    """Checks the parameters of a request that does not exist yet.

    Args:
        params: As ``OmniRequest.params``; None stands for no value.
        takes: The pipeline's parameters.
        spoken: True if the caller wants the answer to a chat or completion as speech.

    Raises:
        RequestError: A parameter has no effect on the task, or cannot have its value.
    """
    own = takes.get(task, TaskParams())
    for name, value in params.items():
        if value is None or name in _ALWAYS:
            continue
        if name not in own.general:
            raise RequestError(
                f"{name}: of no effect on this model's {task}; leave it out{_hint(name, own.general)}",
                param=name,
                code="unsupported_parameter",
            )
        _check_spoken(name, own, spoken)
        check_value(name, value, name)
    stages = mapping_param(params, "stage_params")
    for stage in stages:
        given = mapping_param(stages, stage, "stage_params.")
        where = f"stage_params.{stage}"
        check_names(stage, given, own.stages.get(stage, ()))
        if given:
            _check_spoken(stage, own, spoken, param=where)
        for name, value in given.items():
            check_value(name, value, f"{where}.{name}")


def check_names(stage: str, given: Mapping[str, Any], allowed: Collection[str]) -> None:
    """
    Raises:
        RequestError: ``given``, the stage's ``stage_params``, has a name that is not in ``allowed``.
    """
    for name in given:
        if name in allowed:
            continue
        takes = f"takes {', '.join(allowed)}, not" if allowed else "takes no parameters, so not"
        raise RequestError(
            f"stage_params.{stage} {takes} {name!r}{_hint(name, allowed)}",
            param=f"stage_params.{stage}.{name}",
            code="unknown_parameter",
        )


def _check_spoken(name: str, own: TaskParams, spoken: bool, param: str | None = None) -> None:
    if name in own.spoken and not spoken:
        param = param or name
        raise RequestError(
            f"{param}: only for a spoken answer; leave it out, or have 'audio' among the modalities",
            param=param,
            code="unsupported_parameter",
        )


def _hint(name: str, names: Collection[str]) -> str:
    near = nearest(name, names, cutoff=0.75)
    return f"; did you mean {near!r}?" if near else ""
