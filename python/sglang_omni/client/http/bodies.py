"""What a server is asked: the JSON bodies of chats, completions and speech, for servers of any maker.

A body has what the request sets and nothing else, so that a server that knows only OpenAI's fields takes it.
"""

from __future__ import annotations

from typing import Any

from sglang_omni.client.http.call import HttpCall
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.proto import RequestError

# Fields that only this package's servers know. The client itself sees to those that others do not need.
_NOT_NEEDED = {"request_id", "timeout", "stream_interval"}
_OURS = {
    "stage_params",
    "timings",
    "use_audio_in_video",
    *(f"talker_{name}" for name in ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")),
}
EXTRAS = _NOT_NEEDED | _OURS


def standard(body: dict[str, Any]) -> dict[str, Any]:
    """A body without what only this package's servers know, for a server of another maker.

    Raises:
        RequestError: Without it the answer would be another one.
    """
    if extras := sorted(_OURS & body.keys()):
        raise RequestError(
            f"{extras[0]}: only sgl-omni's servers know it, and this server is another's; leave it out",
            param=extras[0],
            code="unsupported_parameter",
        )
    return {name: value for name, value in body.items() if name not in _NOT_NEEDED}


def completion_body(call: HttpCall, *, audio_format: str) -> tuple[str, dict[str, Any]]:
    """The path and JSON body of a chat or text completion.

    Raises:
        RequestError: The prompt's log-probabilities are wanted, and this is no whole text completion.
    """
    request = call.request
    body, most = _sampling(request)
    if (likeliest := body.pop("prompt_logprobs", None)) is not None:
        if request.messages is not None or request.stream:
            raise RequestError(
                "prompt_logprobs: over HTTP only a text completion that is not streamed has them",
                param="prompt_logprobs",
                code="unsupported_parameter",
            )
        # OpenAI's API has them as those of a prompt that the answer repeats.
        body |= {"echo": True, "logprobs": max(likeliest, body.get("logprobs") or 0)}
    extra = dict(request.extra_params)
    body |= common_fields(call) | {"stream": request.stream}
    if request.stream and request.stream_interval > 1:
        body["stream_interval"] = request.stream_interval
    if most is not None:
        body["max_tokens"] = most
    if request.messages is None:
        body["prompt"] = request.prompt if request.prompt is not None else request.prompt_token_ids
        return "/v1/completions", body | extra
    body["messages"] = request.message_dicts
    if (likeliest := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": likeliest}
    if request.tools:
        body |= {"tools": request.tools, "parallel_tool_calls": request.parallel_tool_calls}
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    if request.output_modalities is not None:
        body["modalities"] = request.output_modalities
        if "audio" in request.output_modalities:
            voice = extra.pop("voice", None)
            body["audio"] = {"format": audio_format} | ({"voice": voice} if voice else {})
    return "/v1/chat/completions", body | extra


def speech_body(call: HttpCall, *, audio_format: str, stream: bool = False) -> dict[str, Any]:
    """The JSON body of a text to speak."""
    body, most = _sampling(call.request)
    body |= common_fields(call) | {"input": call.request.prompt, "response_format": audio_format}
    if most is not None:
        body["max_new_tokens"] = most
    if stream:
        body["stream_format"] = "audio"
    return body | call.request.extra_params


def _sampling(request: GenerateRequest) -> tuple[dict[str, Any], int | None]:
    """The fields that say how tokens are drawn, and the most tokens, of which each route has its own name."""
    fields: dict[str, Any] = request.sampling.to_dict()
    most = fields.pop("max_new_tokens", None)
    return fields, most if request.max_tokens is None else request.max_tokens


def common_fields(call: HttpCall) -> dict[str, Any]:
    """Fields of every request. A random id is only in the header; one in the body must be unique."""
    request = call.request
    body: dict[str, Any] = {}
    if call.chosen is not None:
        body["request_id"] = call.chosen
    if request.model:
        body["model"] = request.model
    if request.timeout is not None:
        body["timeout"] = request.timeout
    if request.timings:
        body["timings"] = True
    stages = {stage: s.to_dict() for stage, s in (request.stage_sampling or {}).items()}
    for stage, own in (request.stage_params or {}).items():
        stages[stage] = {**stages.get(stage, {}), **own}
    if stages:
        body["stage_params"] = stages
    return body
