"""The stage of a language model elsewhere: messages to its server, and the answer back as it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from sglang_omni.cascade.connection import PartConnection
from sglang_omni.generation.answer import AnswerBuilder, GenerateChunk
from sglang_omni.generation.request import GenerateRequest, SamplingParams
from sglang_omni.models.decoder.text_answer import text_chunks
from sglang_omni.preprocessing.request import stage_params
from sglang_omni.preprocessing.template_forms import with_arguments
from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import TextResult
from sglang_omni.scheduling.async_scheduler import AsyncRequest

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "stop", "max_new_tokens"),
)
_EXTRA = ("chat_template_kwargs", "reasoning_effort")
_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id")


class RemoteThinker:
    """From ``{"messages": [...], "input_transcript": str | None}`` to the caller's result of a text answer.

    Args:
        part: The language model's server.
        speaker: The stage that reads the text of a spoken answer.
    """

    def __init__(self, part: PartConnection, *, speaker: str = "speak") -> None:
        self._part = part
        self._speaker = speaker

    async def answer(self, request: AsyncRequest) -> TextResult:
        """
        Raises:
            RequestError: The server refuses the request, or fails.
        """
        payload = request.payload
        answer = AnswerBuilder()
        async with aclosing(self._part.parts(chat_of(payload))) as parts:
            async for part in parts:
                answer.join(part)
                for message in text_chunks(payload, _new_fields(part), speaker=self._speaker):
                    request.send(message)
        return _result(answer.whole(), payload)


def chat_of(payload: StagePayload) -> GenerateRequest:
    """The request to the server: the messages, and of the parameters those that it is sent."""
    params = stage_params(payload.request, "thinker")
    given = {name: params[name] for name in _SAMPLING if params.get(name) is not None}
    extra = {name: params[name] for name in _EXTRA if params.get(name) is not None}
    if (schema := params.get("json_schema")) is not None:
        extra["response_format"] = _format(json.loads(schema))
    return GenerateRequest(
        messages=[_message(message) for message in payload.data["messages"]],
        sampling=SamplingParams(**given),
        extra_params=extra,
        tools=params.get("tools") or None,
        tool_choice=params.get("tool_choice") if params.get("tools") else None,
        parallel_tool_calls=params.get("parallel_tool_calls") is not False,
        stream=True,
        metadata={"task": "chat"},
    )


def _format(schema: Any) -> dict[str, Any]:
    """OpenAI's ``response_format`` for a JSON schema."""
    if schema == {"type": "object"}:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in OpenAI's form, in which the arguments of calls are JSON text."""
    sent = {name: message[name] for name in _MESSAGE if message.get(name) is not None}
    if "tool_calls" in sent:
        sent["tool_calls"] = with_arguments(sent["tool_calls"], as_text=True)
        sent["content"] = sent["content"] or None
    return sent


def _new_fields(part: GenerateChunk) -> dict[str, Any]:
    """What is new in the text, as a stage sends it."""
    if not (part.text or part.reasoning or part.tool_calls):
        return {}
    return {"text": part.text, **_beside_text(part)}


def _beside_text(answer: GenerateChunk) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if answer.reasoning:
        fields["reasoning"] = answer.reasoning
    if answer.tool_calls:
        fields["tool_calls"] = [asdict(call) for call in answer.tool_calls]
    return fields


def _result(whole: GenerateChunk, payload: StagePayload) -> TextResult:
    result = TextResult(
        modality="text",
        text=whole.text,
        finish_reason=whole.finish_reason,
        input_transcript=payload.data.get("input_transcript"),
    )
    result.update(_beside_text(whole))  # type: ignore[typeddict-item]
    if whole.usage is not None:
        result["usage"] = whole.usage.to_dict()  # type: ignore[typeddict-item]
    return result
