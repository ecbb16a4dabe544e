"""A chat's body as the client's request: what is asked for is checked, and media join the messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang_omni.generation.request import GenerateRequest, SamplingParams
from sglang_omni.preprocessing.request_params import TaskParams
from sglang_omni.preprocessing.tools import tools_of
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import EncodedVoice
from sglang_omni.serve.models.chat import ChatCompletionRequest
from sglang_omni.serve.models.content import (
    AudioUrlPart,
    ChatMessage,
    ContentPart,
    ImageUrl,
    ImageUrlPart,
    MediaUrl,
    VideoUrlPart,
)
from sglang_omni.serve.models.tools import FunctionChoice, ToolOfChoice
from sglang_omni.serve.routes.constraints import constraint_of, guiding_params, renamed_params
from sglang_omni.serve.routes.sampling import check_stream_options, to_sampling
from sglang_omni.serve.routes.speech_encoding import check_encodable
from sglang_omni.serve.state import AppState

_PART_MODALITY = {
    "input_audio": "audio",
    "audio_url": "audio",
    "image_url": "image",
    "video_url": "video",
}
# Fields of a message that pipelines read under other names, or not at all.
_NOT_PASSED_ON = {"audio", "refusal", "annotations", "function_call", "reasoning"}
_TALKER = ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")


def to_generate_request(server: AppState, body: ChatCompletionRequest, owner: str | None) -> GenerateRequest:
    """The client's request for an API request.

    Args:
        owner: Whose request it is.

    Raises:
        RequestError: The model cannot do what is asked, or fields contradict each other.
    """
    server.check_task("chat")
    check_stream_options(body)
    for modality in body.modalities or ():
        server.check_output(modality, "modalities")
    extra: dict[str, Any] = {}
    kept: EncodedVoice | None = None
    if body.audio is not None:
        if "audio" not in (body.modalities or ()):
            raise RequestError(
                "audio: needs 'audio' among the modalities", param="audio", code="unsupported_parameter"
            )
        kept = server.encoded_voice(body.audio.voice, "audio.voice", owner)
        if kept is None and (voice := server.check_voice(body.audio.voice, "audio.voice", owner)) is not None:
            extra["voice"] = voice
    for name in _TALKER:
        value = getattr(body, f"talker_{name}")
        if value is not None:
            extra[f"talker_{name}"] = value
    if body.use_audio_in_video:
        extra["use_audio_in_video"] = True
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise RequestError(
            "max_completion_tokens and max_tokens differ; give one",
            param="max_completion_tokens",
            code="invalid_value",
        )
    for name in ("reasoning_effort", "chat_template_kwargs", "add_generation_prompt"):
        value = getattr(body, name)
        if value is not None:
            extra[name] = value
    if body.continue_final_message:
        extra["continue_final_message"] = True
    tools = _tools(body)
    sampling = _sampling(body)
    _check_params(server, body, {**extra, **tools, **guiding_params(sampling)})
    return GenerateRequest(
        model=body.model,
        messages=_messages(server, body),
        owner=owner,
        voice=kept,
        sampling=sampling,
        stage_params=body.stage_params,
        extra_params=extra,
        stream=body.stream,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        output_modalities=list(body.modalities) if body.modalities else None,
        metadata={"task": "chat"},
        timeout=server.timeout(body.timeout),
        timings=body.timings,
        stream_interval=body.stream_interval,
        **tools,
    )


def param_names_of(body: ChatCompletionRequest) -> dict[str, str]:
    """The request's fields by the names that stages know."""
    constraint = constraint_of(body)
    names = {} if constraint is None else {constraint.kind: constraint.param}
    if body.functions is not None:
        names |= {"tools": "functions", "tool_choice": "function_call"}
    # A stage makes one of the tools, and after reasoning of what else the answer must match.
    made_of = names.get("tools", "tools") if constraint is None else constraint.param
    for name in ("structural_tag", "json_schema"):
        names.setdefault(name, made_of)
    return names


def _sampling(body: ChatCompletionRequest) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise RequestError(
            "top_logprobs: only with logprobs, which is false", param="top_logprobs", code="invalid_value"
        )
    sampling = replace(
        to_sampling(body),
        logit_bias=body.logit_bias or {},
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    constraint = constraint_of(body)
    return sampling if constraint is None else constraint.apply(sampling)


def _tools(body: ChatCompletionRequest) -> dict[str, Any]:
    """The fields of the client's request that say what may be called; none if nothing may."""
    if body.functions is not None and body.tools is not None:
        raise RequestError(
            "functions: the older name of tools; give one", param="functions", code="invalid_value"
        )
    if body.functions is not None:
        tools = [
            {"type": "function", "function": function.model_dump(exclude_none=True)}
            for function in body.functions
        ]
        choice = _chosen(body.function_call)
        # Its form has room for one call.
        parallel = False
    else:
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        choice = _chosen(body.tool_choice)
        parallel = body.parallel_tool_calls is not False
    if not tools and choice in (None, "none", "auto"):
        return {}
    fields = {"tools": tools, "tool_choice": choice}
    with renamed_params(param_names_of(body)):
        tools_of(fields)
    return fields | {"parallel_tool_calls": parallel}


def _chosen(choice: str | ToolOfChoice | FunctionChoice | None) -> str | dict[str, Any] | None:
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "function": {"name": choice.name}}
    return choice.model_dump() if isinstance(choice, ToolOfChoice) else choice


def _check_params(server: AppState, body: ChatCompletionRequest, params: dict[str, Any]) -> None:
    spoken = "audio" in (body.modalities or ())
    try:
        with renamed_params(param_names_of(body)):
            server.check_params("chat", params, body.stage_params, spoken=spoken)
    except RequestError as exc:
        if exc.param != "voice":
            raise
        raise RequestError(f"audio.{exc.message}", param="audio.voice", code=exc.code) from exc


def _messages(server: AppState, body: ChatCompletionRequest) -> list[dict[str, Any]]:
    for index, message in enumerate(body.messages):
        _check_message(server, message, f"messages[{index}]")
    messages = [_turn(message) for message in body.messages]
    media: list[dict[str, Any]] = []
    for name, kind in (("images", "image"), ("videos", "video"), ("audios", "audio")):
        for index, url in enumerate(getattr(body, name) or ()):
            param = f"{name}[{index}]"
            server.check_input(kind, param)
            media.append(_media_part(kind, url).model_dump(exclude_none=True) | {"param": param})
    if media:
        _join_last_user_turn(messages, media)
    return messages


def _turn(message: ChatMessage) -> dict[str, Any]:
    """A message as pipelines read it: an earlier spoken answer is its transcript, a refusal is its text, and
    OpenAI's older functions are tools."""
    turn = message.model_dump(exclude_none=True, exclude=_NOT_PASSED_ON)
    if message.role == "function":
        turn["role"] = "tool"
    for call in turn.get("tool_calls", ()):
        call.pop("index", None)
    if message.function_call is not None:
        turn["tool_calls"] = [{"type": "function", "function": message.function_call.model_dump()}]
    if message.reasoning is not None:
        turn.setdefault("reasoning_content", message.reasoning)
    if message.content is None and message.audio is not None:
        turn["content"] = message.audio.transcript
    elif message.content is None and message.refusal is not None:
        turn["content"] = message.refusal
    return turn


def _check_message(server: AppState, message: ChatMessage, where: str) -> None:
    if message.content is None and message.role != "assistant":
        raise RequestError(
            f"{where}.content: a {message.role} message needs content",
            param=f"{where}.content",
            code="missing_required_parameter",
        )
    if message.refusal is not None and (message.role != "assistant" or message.content is not None):
        raise RequestError(
            f"{where}.refusal: what an assistant message has instead of content",
            param=f"{where}.refusal",
            code="invalid_value",
        )
    if message.audio is not None and message.role != "assistant":
        raise RequestError(
            f"{where}.audio: only an assistant message has it; send sound as an input_audio part of content",
            param=f"{where}.audio",
            code="unsupported_parameter",
        )
    if message.audio is not None and message.content is None and message.audio.transcript is None:
        raise RequestError(
            f"{where}.audio: earlier answers are not kept here, so its id says nothing; send the text as "
            "content, or the transcript with the id",
            param=f"{where}.audio",
            code="unsupported_value",
        )
    _check_calls(server, message, where)
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            modality = _PART_MODALITY.get(part.type)
            if modality is not None:
                server.check_input(modality, f"{where}.content[{index}]")


def _check_calls(server: AppState, message: ChatMessage, where: str) -> None:
    takes = server.capabilities.request_params
    has_tools = takes is None or "tools" in takes.get("chat", TaskParams()).general
    result = message.role in ("tool", "function")
    if result and not has_tools:
        raise RequestError(
            f"{where}.role: the model {server.served_name!r} calls no tools, so there is no tool message",
            param=f"{where}.role",
            code="unsupported_value",
        )
    for name, belongs in (
        ("tool_calls", message.role == "assistant" and has_tools),
        ("function_call", message.role == "assistant" and has_tools),
        ("reasoning", message.role == "assistant"),
        ("reasoning_content", message.role == "assistant"),
        ("tool_call_id", result),
    ):
        if getattr(message, name) and not belongs:
            raise RequestError(
                f"{where}.{name}: a {message.role} message has none here",
                param=f"{where}.{name}",
                code="unsupported_parameter",
            )


def _media_part(kind: str, url: str) -> ContentPart:
    if kind == "image":
        return ImageUrlPart(type="image_url", image_url=ImageUrl(url=url))
    if kind == "video":
        return VideoUrlPart(type="video_url", video_url=MediaUrl(url=url))
    return AudioUrlPart(type="audio_url", audio_url=MediaUrl(url=url))


def _join_last_user_turn(messages: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Put media before the text of the last user turn. Its own media keep their fields' names."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        messages.append({"role": "user", "content": parts})
        return
    turn = messages[users[-1]]
    content = turn["content"]
    if isinstance(content, str):
        turn["content"] = [*parts, {"type": "text", "text": content}]
        return
    for index, part in enumerate(content):
        kind = part["type"]
        if kind in _PART_MODALITY:
            source = "data" if kind == "input_audio" else "url"
            part["param"] = f"messages[{users[-1]}].content[{index}].{kind}.{source}"
    turn["content"] = parts + content


def audio_format_of(body: ChatCompletionRequest) -> str:
    chosen = body.audio.format if body.audio else None
    if chosen is None:
        return "pcm16" if body.stream else "wav"
    check_encodable(chosen, "audio.format")
    return chosen
