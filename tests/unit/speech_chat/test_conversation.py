"""Conversion of messages with text and audio parts to text."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_omni.models.speech_chat.conversation import plain_text, with_transcripts
from sglang_omni.preprocessing.messages import MediaPart
from sglang_omni.preprocessing.messages import parse_messages as parse
from sglang_omni.proto import RequestError


def parse_messages(messages: Any) -> tuple[list[dict[str, Any]], list[MediaPart]]:
    return parse(messages, ("audio",))


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def spoken(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_text_stays_text() -> None:
    messages, audio = parse_messages(
        [{"role": "system", "content": "Be brief."}, user(text("One"), text("Two"))]
    )

    assert audio == []
    assert plain_text(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One\nTwo"},
    ]


def test_transcripts_take_their_clips_places() -> None:
    messages, audio = parse_messages(
        [
            user(spoken("a")),
            {"role": "assistant", "content": "Yes."},
            user(text("And this:"), spoken("b"), {"type": "audio_url", "audio_url": {"url": "c"}}),
        ]
    )

    assert audio == [
        MediaPart("audio", "a", "messages[0].content[0].input_audio.data"),
        MediaPart("audio", "b", "messages[2].content[1].input_audio.data"),
        MediaPart("audio", "c", "messages[2].content[2].audio_url.url"),
    ]
    plain, heard = with_transcripts(messages, ["First?", "second", "third"])
    assert [message["content"] for message in plain] == ["First?", "Yes.", "And this:\nsecond\nthird"]
    assert heard == "second third"


def test_nothing_is_heard_in_a_turn_that_was_written() -> None:
    messages, _ = parse_messages(
        [user(spoken("a")), {"role": "assistant", "content": "x"}, user(text("Why?"))]
    )

    assert with_transcripts(messages, ["First?"])[1] is None


def test_a_clip_without_speech_leaves_a_note_in_the_prompt() -> None:
    messages, _ = parse_messages([user(spoken("a"))])

    plain, heard = with_transcripts(messages, [""])

    assert plain[0]["content"] == "(no speech was heard)"
    assert heard == ""


def test_developers_are_systems_and_other_fields_stay() -> None:
    messages, _ = parse_messages(
        [{"role": "developer", "content": "x"}, {"role": "tool", "content": "42", "tool_call_id": "t"}]
    )

    assert plain_text(messages) == [
        {"role": "system", "content": "x"},
        {"role": "tool", "content": "42", "tool_call_id": "t"},
    ]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "Paris."}}, "Paris."),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "t", "function": {"name": "f"}}]}, ""),
        ({"role": "assistant", "content": "Rome.", "audio": {"id": "a"}}, "Rome."),
    ],
)
def test_earlier_answers(message: dict[str, Any], content: str) -> None:
    messages, _ = parse_messages([message])

    plain = plain_text(messages)[0]
    assert plain["content"] == content
    assert "audio" not in plain


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hello", "messages"),
        ({"role": "user"}, "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "audio": {"id": "x"}}], "messages[0].content"),
        ([user("plain")], "messages[0].content[0].type"),
        ([user({"type": "image_url", "image_url": {"url": "x"}})], "messages[0].content[0].type"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(text("x"), {"type": "input_audio"})], "messages[0].content[1].input_audio"),
        ([user({"type": "input_audio", "input_audio": {}})], "messages[0].content[0].input_audio.data"),
        ([user({"type": "audio_url", "audio_url": {"url": 3}})], "messages[0].content[0].audio_url.url"),
    ],
)
def test_malformed_messages_are_refused_by_name(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_messages(messages)
    assert refused.value.param == param
    assert param in refused.value.message
    assert refused.value.status == 400
