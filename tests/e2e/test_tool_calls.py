"""Tools over a real fleet, through the router, with OpenAI's own client: the bundled model is too small to
call by itself, so it is made to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import openai
import pytest
from served_process import ServedProcess

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": SCHEMA}}
ASKED: dict[str, Any] = {
    "model": "speech-chat",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "temperature": 0,
    "max_tokens": 100,
}


@pytest.fixture
def client(fleet: ServedProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.base_url}/v1", api_key="none", max_retries=0, timeout=120)


def checked(call: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = json.loads(call.function.arguments)
    assert call.function.name == "weather"
    jsonschema.validate(arguments, SCHEMA)
    return arguments


def test_a_call_and_its_result(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**ASKED).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    checked(call)
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    messages = [*ASKED["messages"], choice.message, result]
    again = client.chat.completions.create(**{**ASKED, "messages": messages, "tool_choice": "auto"})
    assert again.choices[0].message.content


def test_the_same_call_streamed_and_asynchronous(fleet: ServedProcess, client: openai.OpenAI) -> None:
    (whole,) = client.chat.completions.create(**ASKED).choices[0].message.tool_calls

    async def streamed() -> Any:
        async with (
            openai.AsyncOpenAI(base_url=f"{fleet.base_url}/v1", api_key="none", timeout=120) as api,
            api.chat.completions.stream(**ASKED) as events,
        ):
            kind = "tool_calls.function.arguments.delta"
            deltas = [event async for event in events if event.type == kind]
            return deltas, await events.get_final_completion()

    deltas, final = asyncio.run(streamed())
    (call,) = final.choices[0].message.tool_calls
    assert checked(call) == checked(whole)
    assert len(deltas) > 3
    assert final.choices[0].finish_reason == "tool_calls"


def test_what_is_called_is_not_spoken(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, modalities=["text", "audio"])
    message = answer.choices[0].message
    checked(message.tool_calls[0])
    assert message.content is None
    assert message.audio is None


def test_a_format_and_log_probabilities(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(
        model="speech-chat",
        messages=[{"role": "user", "content": "Name a city as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}},
        logprobs=True,
        top_logprobs=2,
        temperature=0,
        max_tokens=100,
    ).choices
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode().startswith(choice.message.content)
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
