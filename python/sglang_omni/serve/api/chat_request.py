"""A chat's body as the client's request: what is asked for is checked, and media join the messages."""

from __future__ import annotations

from typing import Any

from sglang_omni.client import GenerateRequest, RequestError
from sglang_omni.serve.api.protocol.chat import ChatCompletionRequest
from sglang_omni.serve.api.protocol.content import (
    AudioUrlPart,
    ChatMessage,
    ContentPart,
    ImageUrl,
    ImageUrlPart,
    MediaUrl,
    VideoUrlPart,
)
from sglang_omni.serve.api.sampling import check_stream_options, to_sampling
from sglang_omni.serve.api.spoken import check_encodable
from sglang_omni.serve.api.state import AppState

_PART_MODALITY = {
    "input_audio": "audio",
    "audio_url": "audio",
    "image_url": "image",
    "video_url": "video",
}
_TALKER = ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")


def to_generate_request(server: AppState, body: ChatCompletionRequest) -> GenerateRequest:
    """The client's request for an API request.

    Raises:
        RequestError: The model cannot do what is asked, or fields contradict each other.
    """
    server.check_task("chat")
    check_stream_options(body)
    for modality in body.modalities or ():
        server.check_output(modality, "modalities")
    extra: dict[str, Any] = {}
    if body.audio is not None:
        if "audio" not in (body.modalities or ()):
            raise RequestError(
                "audio: needs 'audio' among the modalities", param="audio", code="unsupported_parameter"
            )
        server.check_voice(body.audio.voice, "audio.voice")
        if body.audio.voice is not None:
            extra["voice"] = body.audio.voice
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
    _check_extra(server, body, extra)
    return GenerateRequest(
        model=body.model,
        messages=_messages(server, body),
        sampling=to_sampling(body),
        stage_params=body.stage_params,
        extra_params=extra,
        stream=body.stream,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        output_modalities=list(body.modalities) if body.modalities else None,
        metadata={"task": "chat"},
        timeout=server.timeout(body.timeout),
        timings=body.timings,
    )


def _check_extra(server: AppState, body: ChatCompletionRequest, extra: dict[str, Any]) -> None:
    try:
        server.check_params("chat", extra, body.stage_params, spoken="audio" in (body.modalities or ()))
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
    """A message as pipelines read it: an earlier spoken answer is its transcript, a refusal is its text."""
    turn = message.model_dump(exclude_none=True, exclude={"audio", "refusal"})
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
    if message.role == "tool":
        raise RequestError(
            f"{where}.role: tools are not supported here, so there is no tool message",
            param=f"{where}.role",
            code="unsupported_value",
        )
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            modality = _PART_MODALITY.get(part.type)
            if modality is not None:
                server.check_input(modality, f"{where}.content[{index}]")


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
