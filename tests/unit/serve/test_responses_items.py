"""Items of responses: as a conversation for the model, and as an answer and its events."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_omni.client import CompletionResult, CompletionStreamChunk, TokenLogprob, ToolCall
from sglang_omni.serve.models.responses import ResponsesRequest
from sglang_omni.serve.routes.responses_input import conversation, input_items
from sglang_omni.serve.routes.responses_output import OutputWriter

URL = "data:image/png;base64,AA=="


def messages(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    body = ResponsesRequest.model_validate({"input": list(items)})
    return conversation(instructions, (), input_items(body))


def test_a_text_is_a_users_message() -> None:
    items = input_items(ResponsesRequest.model_validate({"input": "Hi"}))
    assert items[0].pop("id").startswith("msg_")
    content = [{"type": "input_text", "text": "Hi"}]
    assert items == [{"type": "message", "role": "user", "status": "completed", "content": content}]
    assert conversation("Be brief.", (), items) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_what_an_assistant_thinks_says_and_calls_is_one_message() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    reported = messages(
        {"role": "user", "content": "Hi"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Wait", "annotations": []}]},
        {**call, "call_id": "c1"},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"role": "assistant", "content": "Done"},
    )
    function = {"name": "f", "arguments": "{}"}
    assert reported == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Wait",
            "reasoning_content": "Hm",
            "tool_calls": [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "Done"},
    ]


def test_instructions_and_a_first_message_of_the_system_are_one() -> None:
    reported = messages(
        {"role": "developer", "content": "Two."}, {"role": "user", "content": "Hi"}, instructions="One."
    )
    texts = [{"type": "text", "text": text} for text in ("One.", "Two.")]
    assert reported == [{"role": "system", "content": texts}, {"role": "user", "content": "Hi"}]


def test_media_keep_the_names_of_their_fields() -> None:
    sound = {"data": "AA==", "format": "wav"}
    reported = messages(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See"},
                {"type": "input_image", "image_url": URL, "detail": "low"},
                {"type": "input_audio", "input_audio": sound},
            ],
        }
    )
    assert reported[0]["content"] == [
        {"type": "text", "text": "See"},
        {
            "type": "image_url",
            "image_url": {"url": URL, "detail": "low"},
            "param": "input[0].content[1].image_url",
        },
        {"type": "input_audio", "input_audio": sound, "param": "input[0].content[2].input_audio.data"},
    ]


def chunk(text: str = "", **more: Any) -> CompletionStreamChunk:
    return CompletionStreamChunk("r", text=text, **more)


def test_events_of_reasoning_a_message_and_calls() -> None:
    writer = OutputWriter()
    events = []
    for new in (
        chunk(reasoning="H"),
        chunk(reasoning="m"),
        chunk("Let", logprobs=[TokenLogprob("Let", 5, -0.5, b"Let", [TokenLogprob("Let", 5, -0.5, b"Let")])]),
        chunk(" me"),
        chunk(tool_calls=[ToolCall(0, "c1", "f", "")]),
        chunk(tool_calls=[ToolCall(0, arguments='{"a"')]),
        chunk(tool_calls=[ToolCall(0, arguments=":1}"), ToolCall(1, "c2", "g", "{}")]),
    ):
        events += writer.add(new)
    events += writer.finish("completed")
    assert [(event["type"].removeprefix("response."), event["output_index"]) for event in events] == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
    ]
    reasoning, message, first, second = writer.items
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm"}]
    assert message["content"][0]["text"] == "Let me"
    assert message["content"][0]["logprobs"][0]["top_logprobs"] == [
        {"token": "Let", "bytes": [76, 101, 116], "logprob": -0.5}
    ]
    assert (first["call_id"], first["name"], first["arguments"]) == ("c1", "f", '{"a":1}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("c2", "g", "{}")
    assert {item["status"] for item in writer.items} == {"completed"}
    # What an event told is not changed by what came later.
    assert events[0]["item"]["content"] == []
    assert events[14]["item"]["arguments"] == ""


@pytest.mark.parametrize("calls", [False, True])
def test_only_the_last_item_is_incomplete(calls: bool) -> None:
    writer = OutputWriter()
    tool_calls = [ToolCall(0, "c1", "f", '{"a')] if calls else []
    writer.add(CompletionResult("r", "Hi", reasoning="Hm", tool_calls=tool_calls))
    writer.finish("incomplete")
    assert [item["status"] for item in writer.items] == ["completed"] * (1 + calls) + ["incomplete"]


def test_an_empty_answer_is_an_empty_message() -> None:
    writer = OutputWriter()
    writer.add(CompletionResult("r", ""))
    assert len(writer.finish("completed")) == 5
    assert writer.items[0]["content"][0]["text"] == ""
