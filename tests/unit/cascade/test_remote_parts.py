"""Parts at servers that fail in every way: what a request is told, and what is sent again."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from faulty_server import CLOSED, RESET, Act, FaultyServer, http

from sglang_omni.cascade.part import PartError
from sglang_omni.cascade.stages import create_speak, create_thinker, create_transcribe
from sglang_omni.generation.samples import encode_pcm
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.async_scheduler import AsyncScheduler
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage

DEADLINE = 30
MODELS = Act(http(200, {"data": [{"id": "m"}]}))
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def events(*each: Any, done: bool = True) -> Act:
    lines = [f"data: {json.dumps(event)}\n\n" for event in each] + ["data: [DONE]\n\n"] * done
    return Act(http(200, "".join(lines).encode(), content_type="text/event-stream"))


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


HELLO = events(delta(content="Hel"), delta(content="lo."), delta("stop"), {"choices": [], "usage": USAGE})


@contextmanager
def stage(make: Callable[..., AsyncScheduler], url: str, **part: Any) -> Iterator[AsyncScheduler]:
    scheduler = make(part={"url": url, "silence_timeout": DEADLINE, **part})
    thread = threading.Thread(target=scheduler.start)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def ask(scheduler: AsyncScheduler, data: Any, task: str = "chat", **request: Any) -> list[OutgoingMessage]:
    """Runs a request; returns all that is told of it."""
    metadata = {"task": task, "output_modalities": request.pop("modalities", ["text"])}
    payload = StagePayload("r", OmniRequest(None, request, metadata), data)
    scheduler.inbox.put(IncomingMessage("r", "new_request", payload))
    reported = [scheduler.outbox.get(timeout=DEADLINE)]
    while reported[-1].type == "stream":
        reported.append(scheduler.outbox.get(timeout=DEADLINE))
    return reported


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def test_an_answer_comes_in_pieces_and_whole_with_its_usage() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }
    messages = [*CHAT["messages"], call, {"role": "tool", "tool_call_id": "c", "content": "1"}]
    params = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["."], "max_new_tokens": 5, "tools": tools}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with FaultyServer([MODELS, HELLO]) as server, stage(create_thinker, server.url) as thinker:
        *chunks, whole = ask(
            thinker, {"messages": messages}, stream=True, json_schema=json.dumps(schema), **params
        )
    assert [chunk.data["text"] for chunk in chunks] == ["Hel", "lo."]
    assert {chunk.target for chunk in chunks} == {"coordinator"}
    assert whole.data.data["text"] == "Hello."
    assert whole.data.data["finish_reason"] == "stop"
    assert whole.data.data["usage"]["completion_tokens"] == 2
    sent = server.bodies[1]
    assert sent["model"] == "m"
    assert sent["max_tokens"] == 5
    assert {name: sent[name] for name in ("temperature", "top_p", "seed", "stop", "tools")} == {
        name: params[name] for name in ("temperature", "top_p", "seed", "stop", "tools")
    }
    assert sent["response_format"]["json_schema"]["schema"] == schema
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert sent["messages"][1]["content"] is None


def test_calls_and_reasoning_are_reported() -> None:
    first = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a'}}
    rest = {"index": 0, "function": {"arguments": '": 1}'}}
    answer = events(
        delta(reasoning_content="Hm."),
        delta(tool_calls=[first]),
        delta(tool_calls=[rest]),
        delta("tool_calls"),
    )
    with FaultyServer([MODELS, answer]) as server, stage(create_thinker, server.url) as thinker:
        *chunks, whole = ask(thinker, CHAT, stream=True, modalities=["text", "audio"])
    assert {chunk.target for chunk in chunks} == {"coordinator"}  # none of it is spoken
    assert whole.data.data["reasoning"] == "Hm."
    assert whole.data.data["tool_calls"] == [{"index": 0, "id": "c", "name": "f", "arguments": '{"a": 1}'}]
    assert whole.data.data["finish_reason"] == "tool_calls"


def error(status: int, message: str, **fields: Any) -> Act:
    return Act(http(status, {"error": {"message": message, **fields}}))


@pytest.mark.parametrize(
    ("act", "status", "code", "reported"),
    [
        (error(401, "bad key"), 502, "upstream_refused", "refuses the key"),
        (error(404, "no model m"), 502, "upstream_refused", "does not find 'm'"),
        (
            error(400, "too long", param="max_tokens", code="context_length_exceeded"),
            400,
            "context_length_exceeded",
            "too long",
        ),
        (error(500, "secret trace"), 502, "upstream_failed", "failed"),
        (error(504, "slow"), 504, "upstream_timeout", "too long"),
        (RESET, 502, "upstream_failed", "failed"),
        (CLOSED, 502, "upstream_failed", "failed"),
        (Act(http(200, "<html>", content_type="text/html")), 502, "upstream_failed", "failed"),
        (events(delta(content="Hel"), done=False), 502, "upstream_failed", "failed"),
        (events(delta(content="Hel")), 502, "upstream_failed", "failed"),
        (events(delta(content="Hel"), {"error": {"message": "secret"}}), 502, "upstream_failed", "failed"),
        (Act(http(200, b"data: {broken", content_type="text/event-stream")), 502, "upstream_failed", ""),
        (Act(holds=True), 504, "upstream_timeout", "silent"),
        (Act(events(delta(content="Hel")).answer[:-20], holds=True), 504, "upstream_timeout", "silent"),
    ],
)
def test_a_failure_is_reported_as_that_requests_alone(
    act: Act, status: int, code: str, reported: str
) -> None:
    """Also if part of the answer has been told: it ends in the error."""
    acts = [MODELS, act, HELLO]
    silence = 0.3 if act.holds else DEADLINE
    with (
        FaultyServer(acts) as server,
        stage(create_thinker, server.url, max_retries=0, silence_timeout=silence) as thinker,
    ):
        failed = ask(thinker, CHAT, stream=True)[-1]
        after = ask(thinker, CHAT)[-1]
    assert isinstance(failed.data, RequestError)
    assert (failed.data.status, failed.data.code) == (status, code)
    assert reported in failed.data.message
    assert "secret" not in failed.data.message
    assert after.data.data["text"] == "Hello."


def test_a_request_is_sent_again_before_its_first_byte_and_not_after_it() -> None:
    busy = Act(http(429, {"error": {"message": "busy"}}, retry_after="0"))
    broken = events(delta(content="Hel"), done=False)
    with FaultyServer([MODELS, busy, busy, HELLO, broken]) as server:
        with stage(create_thinker, server.url) as thinker:
            assert ask(thinker, CHAT)[-1].data.data["text"] == "Hello."
            assert ask(thinker, CHAT, stream=True)[-1].type == "error"
        assert len(server.bodies) == 5


def test_a_server_that_comes_later_is_found_then(held_port: int) -> None:
    with stage(create_thinker, f"http://127.0.0.1:{held_port}/v1", max_retries=0) as thinker:
        refused = ask(thinker, CHAT)[-1].data
        assert (refused.status, refused.code) == (502, "upstream_unreachable")
        with FaultyServer([MODELS, HELLO], held_port) as server:
            assert ask(thinker, CHAT)[-1].data.data["text"] == "Hello."
            assert server.bodies[1]["model"] == "m"


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (http(200, {"data": [{"id": "a"}, {"id": "b"}]}), "lists 2 models .*--llm-model"),
        (
            http(401, {"error": {"message": "no"}}),
            "refuses the key .*OPENAI_API_KEY is not set.*--llm-api-key-env",
        ),
        (http(404, {"error": {"message": "no"}}), "is the URL that of an API"),
    ],
)
def test_a_wrong_start_is_reported(answer: bytes, reported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FaultyServer([Act(answer)]) as server, pytest.raises(PartError, match=reported):
        create_thinker(part={"url": server.url})


def test_an_abort_closes_the_connection() -> None:
    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(MODELS.answer)
            connection.close()
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(
                events(delta(content="Hel"), done=False).answer.replace(b"content-length", b"x-l")
            )
            while connection.recv(65536):
                pass
            closed.set()
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        with stage(create_thinker, f"http://127.0.0.1:{listener.getsockname()[1]}") as thinker:
            payload = StagePayload("r", OmniRequest(None, {"stream": True}, {"task": "chat"}), CHAT)
            thinker.inbox.put(IncomingMessage("r", "new_request", payload))
            assert thinker.outbox.get(timeout=DEADLINE).data["text"] == "Hel"
            thinker.abort("r")
            assert closed.wait(DEADLINE)


def sound(*samples: float, rate: str = "16000") -> Act:
    return Act(http(200, encode_pcm(np.array(samples, np.float32)), x_sample_rate=rate))


def test_sentences_are_spoken_in_their_order_while_the_answer_is_written() -> None:
    acts = [MODELS, sound(0.5, 0.25), sound(-0.5)]
    with FaultyServer(acts) as server, stage(create_speak, server.url, voice="amy") as speak:
        params = {"stream": True, "seed": -1, "stage_params": {"speak": {"speed": 2.0}}}
        metadata = {"task": "chat", "output_modalities": ["audio"]}
        payload = StagePayload("r", OmniRequest(None, params, metadata), {})
        speak.inbox.put(IncomingMessage("r", "new_request", payload))
        for number, text in enumerate(("One **is** here. ", "Two. ", "\U0001f600")):
            item = StreamItem(number, {"text": text}, "thinker")
            speak.inbox.put(IncomingMessage("r", "stream_chunk", item))
            if number == 1:  # the first sentence is heard before the rest is written
                assert speak.outbox.get(timeout=DEADLINE).data["spoken_text"] == "One is here."
        speak.inbox.put(IncomingMessage("r", "stream_done"))
        second, whole = (speak.outbox.get(timeout=DEADLINE) for _ in range(2))
    assert second.data["spoken_text"] == "Two."
    np.testing.assert_array_equal(whole.data.data["audio_data"], np.float32([0.5, 0.25, -0.5]))
    assert whole.data.data["sample_rate"] == 16_000
    assert [(body["input"], body["voice"]) for body in server.bodies[1:]] == [
        ("One is here.", "amy"),
        ("Two.", "amy"),
    ]
    assert server.bodies[1]["speed"] == 2.0
    assert "seed" not in server.bodies[1]  # it is the text's


def test_what_the_voice_refuses_ends_the_answer() -> None:
    acts = [MODELS, error(400, "no voice 'bob'", param="voice", code="unsupported_value")]
    with FaultyServer(acts) as server, stage(create_speak, server.url) as speak:
        refused = ask(speak, {"text": "Hi."}, task="speech", voice="bob")[-1].data
        assert server.bodies[1]["voice"] == "bob"
    assert (refused.status, refused.param) == (400, "voice")


HEARD = {
    "text": "Hello.",
    "language": "english",
    "duration": 1.0,
    "segments": [{"id": 0, "start": 0.0, "end": 1.0, "text": "Hello."}],
}


def hearing(part: Any) -> AsyncScheduler:
    return create_transcribe("nowhere", part=part, takes_messages=True)


def test_clips_become_messages_and_are_asked_for_once() -> None:
    clip = np.linspace(-0.5, 0.5, 1600, dtype=np.float32)
    chat = {"messages": [{"role": "user", "content": ["Listen:", 0]}], "clips": [clip]}
    with FaultyServer([MODELS, Act(http(200, HEARD))]) as server, stage(hearing, server.url) as hear:
        first, again = ask(hear, chat, stream=True), ask(hear, chat)
        assert len(server.bodies) == 2
    assert first[0].data["input_transcript"] == "Hello."
    expected = {"messages": [{"role": "user", "content": "Listen:\nHello."}], "input_transcript": "Hello."}
    assert first[1].data.data == again[0].data.data == expected
    assert b"WAVE" in server.bodies[1]


def test_a_transcription_has_its_segments() -> None:
    acts = [MODELS, Act(http(200, HEARD)), error(400, "what is this", param="file", code="invalid_audio")]
    with FaultyServer(acts) as server, stage(hearing, server.url) as hear:
        chunk, whole = ask(hear, {"audio": b"ID3"}, task="translation", stream=True, language="en")
        refused = ask(hear, {"audio": b"?"}, task="transcription")[-1].data
    assert server.paths[1:] == ["/v1/audio/translations", "/v1/audio/transcriptions"]
    assert chunk.data["text"] == "Hello."
    assert (
        whole.data.data["segments"]
        == chunk.data["segments"]
        == [{"start": 0.0, "end": 1.0, "text": "Hello."}]
    )
    assert (whole.data.data["language"], whole.data.data["duration"]) == ("en", 1.0)
    assert refused.param == "file"
