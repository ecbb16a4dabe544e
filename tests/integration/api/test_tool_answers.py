"""Calls of tools, reasoning and log-probabilities, through OpenAI's client and our own: asked for, whole and
streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from sglang_omni.client import Client, GenerateRequest, SamplingParams, SyncClient, TokenLogprob, ToolCall
from sglang_omni.preprocessing.request_params import SAMPLING, TaskParams
from sglang_omni.serve.state import Capabilities

HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}, "strict": True}}
CALLS = [
    {"index": 0, "id": "call_a", "name": "weather", "arguments": '{"city": "Ulm"}'},
    {"index": 1, "id": "call_b", "name": "clock", "arguments": "{}"},
]
PARTS = [
    {"text": "", "reasoning": "Hm"},
    {"text": "", "reasoning": ", rain?"},
    {"text": "I look."},
    {"text": "", "tool_calls": [{"index": 0, "id": "call_a", "name": "weather", "arguments": ""}]},
    {"text": "", "tool_calls": [{"index": 0, "id": None, "name": None, "arguments": '{"city":'}]},
    {
        "text": "",
        "tool_calls": [
            {"index": 0, "id": None, "name": None, "arguments": ' "Ulm"}'},
            {"index": 1, "id": "call_b", "name": "clock", "arguments": ""},
        ],
    },
]
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4},
}


def one(token: str, token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": token, "token_id": token_id, "logprob": logprob, "bytes": list(token.encode())}


LOGPROBS = [
    {**one("é", 5, -0.5), "top": [one("é", 5, -0.5), one("a", 6, -1.5)]},
    {**one("!", 7, -0.25), "top": [one("!", 7, -0.25)]},
]


@pytest.fixture
def calling(pipeline: Any) -> Any:
    """The scripted pipeline, whose answer has reasoning, content and two calls."""
    pipeline.parts = PARTS
    pipeline.more = {
        "text": "I look.",
        "reasoning": "Hm, rain?",
        "tool_calls": CALLS,
        "finish_reason": "tool_calls",
        "usage": USAGE,
    }
    return pipeline


def test_what_is_asked_for(api: openai.OpenAI, pipeline: Any) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    api.chat.completions.create(
        model="scripted",
        messages=HELLO,
        tools=[TOOL],
        tool_choice=named,
        parallel_tool_calls=False,
        reasoning_effort="low",
        logprobs=True,
        top_logprobs=3,
        logit_bias={"12": -100},
        response_format={"type": "json_object"},
        extra_body={
            "chat_template_kwargs": {"enable_thinking": False},
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    )
    assert pipeline.last.params == {
        "tools": [TOOL],
        "tool_choice": named,
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "logprobs": 3,
        "logit_bias": {12: -100.0},
        "json_schema": '{"type": "object"}',
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "continue_final_message": True,
        "stream": False,
    }


def test_an_answer_that_calls(api: openai.OpenAI, calling: Any) -> None:
    answer = api.chat.completions.create(model="scripted", messages=HELLO, tools=[TOOL])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert [call.to_dict() for call in choice.message.tool_calls] == [
        {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}},
        {"id": "call_b", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]
    assert choice.message.content == "I look."
    assert choice.message.reasoning_content == choice.message.reasoning == "Hm, rain?"
    assert choice.logprobs is None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4
    # The answer goes back as it came, with the calls' results.
    turn = choice.message.model_dump() | {"annotations": []}
    results = [{"role": "tool", "tool_call_id": "call_a", "content": "rain"}]
    api.chat.completions.create(model="scripted", messages=[*HELLO, turn, *results], tools=[TOOL])
    assert calling.last.inputs["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm, rain?",
            "tool_calls": [call.to_dict() for call in choice.message.tool_calls],
        },
        results[0],
    ]
    calling.more["text"] = ""
    calling.parts = PARTS[3:]
    answer = api.chat.completions.create(model="scripted", messages=HELLO, tools=[TOOL])
    assert answer.choices[0].message.content is None


async def test_a_streamed_answer_that_calls(base_url: str, calling: Any) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as api:
        stream = await api.chat.completions.create(
            model="scripted",
            messages=HELLO,
            tools=[TOOL],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert [delta.role for delta in deltas if delta.role] == ["assistant"]
        reasoning = [delta.reasoning_content for delta in deltas if hasattr(delta, "reasoning_content")]
        assert "".join(reasoning) == "Hm, rain?"
        assert "".join(delta.content or "" for delta in deltas) == "I look."
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert [(call.index, call.id, call.type, call.function.name) for call in calls] == [
            (0, "call_a", "function", "weather"),
            (0, None, None, None),
            (0, None, None, None),
            (1, "call_b", "function", "clock"),
            (1, None, None, None),
        ]
        assert [call.function.arguments for call in calls] == ["", '{"city":', ' "Ulm"}', "", "{}"]
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
        assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 4
        # OpenAI's own collection of a stream.
        async with api.chat.completions.stream(model="scripted", messages=HELLO, tools=[TOOL]) as events:
            whole = await events.get_final_completion()
        assert [call.function.arguments for call in whole.choices[0].message.tool_calls] == [
            '{"city": "Ulm"}',
            "{}",
        ]


class Weather(BaseModel):
    """The weather of a city."""

    city: str


def test_openais_typed_tools(api: openai.OpenAI, calling: Any) -> None:
    calling.more["tool_calls"] = [{**CALLS[0], "name": "Weather"}]
    answer = api.chat.completions.parse(
        model="scripted", messages=HELLO, tools=[openai.pydantic_function_tool(Weather)]
    )
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Ulm")
    (tool,) = calling.last.params["tools"]
    assert tool["function"]["strict"] is True
    assert tool["function"]["parameters"]["required"] == ["city"]


def test_openais_older_functions(api: openai.OpenAI, calling: Any) -> None:
    fields: dict[str, Any] = {
        "model": "scripted",
        "messages": [
            *HELLO,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "x"},
        ],
        "functions": [{"name": "weather"}],
        "function_call": {"name": "weather"},
    }
    calling.more["tool_calls"] = CALLS[:1]
    (choice,) = api.chat.completions.create(**fields).choices
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call.to_dict() == {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert choice.message.tool_calls is None
    assert calling.last.params["tools"] == [{"type": "function", "function": {"name": "weather"}}]
    assert calling.last.params["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert calling.last.params["parallel_tool_calls"] is False
    assert calling.last.inputs["messages"][1:] == [
        {
            "role": "assistant",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "name": "f", "content": "x"},
    ]
    calling.parts = PARTS[:5]
    deltas = [chunk.choices[0].delta for chunk in api.chat.completions.create(**fields, stream=True)]
    reported = [delta.function_call for delta in deltas if delta.function_call]
    assert [each.name for each in reported if each.name] == ["weather"]
    assert "".join(each.arguments for each in reported) == '{"city": "Ulm"}'


def test_logprobs(api: openai.OpenAI, pipeline: Any) -> None:
    pipeline.more = {"logprobs": LOGPROBS}
    pipeline.parts = [{"text": "é", "logprobs": LOGPROBS[:1]}, {"text": "!"}]
    fields: dict[str, Any] = {"model": "scripted", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    whole = api.chat.completions.create(**fields).choices[0].logprobs.content
    assert [(token.token, token.logprob, token.bytes) for token in whole] == [
        ("é", -0.5, [0xC3, 0xA9]),
        ("!", -0.25, [33]),
    ]
    assert [[other.token for other in token.top_logprobs] for token in whole] == [["é", "a"], ["!"]]
    chunks = api.chat.completions.create(**fields, stream=True)
    reported = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for each in reported if each for token in each.content] == whole


def test_several_answers(api: openai.OpenAI, calling: Any) -> None:
    answer = api.chat.completions.create(model="scripted", messages=HELLO, tools=[TOOL], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(len(choice.message.tool_calls) == 2 for choice in answer.choices)
    assert answer.usage.completion_tokens_details.reasoning_tokens == 8
    chunks = list(api.chat.completions.create(model="scripted", messages=HELLO, n=2, stream=True))
    ends = {chunk.choices[0].index: chunk.choices[0].finish_reason for chunk in chunks}
    assert ends == {0: "tool_calls", 1: "tool_calls"}
    roles = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].delta.role]
    assert sorted(roles) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ],
)
def test_a_pipeline_without_them_refuses_by_name(serve: Any, fields: dict[str, Any], param: str) -> None:
    takes = Capabilities(request_params={"chat": TaskParams(SAMPLING)})
    with serve(takes, "own") as (pipeline, base_url):
        body = {"messages": HELLO, **fields}
        answer = httpx.post(f"{base_url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert pipeline.requests == []


def test_our_client_over_both_transports(client: SyncClient, calling: Any) -> None:
    calling.more["logprobs"] = LOGPROBS
    request = GenerateRequest(
        messages=HELLO,
        sampling=SamplingParams(logprobs=2, logit_bias={5: 1.5}, regex="a+"),
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        extra_params={"chat_template_kwargs": {"a": 1}},
    )
    whole = client.completion(request)
    calls = [ToolCall(**call) for call in CALLS]
    logprobs = [TokenLogprob.from_wire(token) for token in LOGPROBS]
    assert (whole.text, whole.reasoning, whole.tool_calls) == ("I look.", "Hm, rain?", calls)
    assert (whole.logprobs, whole.finish_reason) == (logprobs, "tool_calls")
    assert whole.usage.reasoning_tokens == 4
    asked = {name: value for name, value in calling.last.params.items() if name != "stream"}
    assert asked == {
        "logprobs": 2,
        "logit_bias": {5: 1.5},
        "regex": "a+",
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"a": 1},
    }

    parts = list(client.completion_stream(request))
    assert "".join(part.reasoning for part in parts) == "Hm, rain?"
    reported = [(call.index, call.name, call.arguments) for part in parts for call in part.tool_calls]
    streamed = [call for part in PARTS for call in part.get("tool_calls", ())]
    # The result has the last call's arguments, which no part had.
    assert reported == [(call["index"], call["name"], call["arguments"]) for call in streamed] + [
        (1, None, "{}")
    ]
    assert [token for part in parts for token in part.logprobs] == logprobs
    final = [chunk for chunk in client.generate(request) if chunk.finish_reason]
    assert [(chunk.tool_calls, chunk.logprobs, chunk.reasoning) for chunk in final] == [
        (calls, logprobs, "Hm, rain?")
    ]
    assert json.dumps(final[0].usage.to_dict())


def test_an_aborted_answer_keeps_what_there_is(pipeline: Any) -> None:
    pipeline.parts = [*PARTS[:5], {"text": "never"}]
    pipeline.hangs_after = 5

    async def run() -> Any:
        client = Client(pipeline)
        async for chunk in client.generate(GenerateRequest(messages=HELLO, tools=[TOOL]), "aborted"):
            last = chunk
            if chunk.tool_calls and chunk.tool_calls[0].arguments and chunk.finish_reason is None:
                asyncio.get_running_loop().call_later(0.05, asyncio.ensure_future, client.abort("aborted"))
        return last

    last = asyncio.run(run())
    assert (last.finish_reason, last.reasoning) == ("abort", "Hm, rain?")
    assert last.tool_calls == [ToolCall(0, "call_a", "weather", '{"city":')]
