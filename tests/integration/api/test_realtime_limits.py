"""Realtime sessions: what is refused, what is bounded, and how sessions end."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from realtime_client import CLIP, served
from scripted_pipeline import CAPABILITIES, RATE
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sglang_omni.serve.front.admission import AdmissionLimits
from sglang_omni.serve.realtime import conversation, outbox, session
from sglang_omni.serve.routes import realtime as realtime_route


async def test_items_are_put_where_they_are_wanted_and_deleted() -> None:
    async with served() as server, server.talk() as talk:
        await talk.update(output_modalities=["text"])

        async def add(text: str, **fields: Any) -> dict[str, Any]:
            content = [{"type": "input_text", "text": text}]
            item = {"type": "message", "role": "user", "id": text, "content": content}
            await talk.send("conversation.item.create", item=item, **fields)
            return await talk.until("conversation.item.added")

        assert (await add("b"))["previous_item_id"] is None
        assert (await add("d"))["previous_item_id"] == "b"
        assert (await add("c", previous_item_id="b"))["previous_item_id"] == "b"
        assert (await add("a", previous_item_id="root"))["previous_item_id"] is None
        await talk.send("conversation.item.delete", item_id="c")
        assert (await talk.until("conversation.item.deleted"))["item_id"] == "c"
        await talk.respond()
        texts = [message["content"][0]["text"] for message in await server.messages()]
        assert texts == ["a", "b", "d"]
        for kind in ("conversation.item.delete", "conversation.item.retrieve"):
            assert (await talk.refusal(kind, item_id="c"))["code"] == "item_not_found"
        same = {"type": "message", "role": "user", "id": "a", "content": []}
        assert (await talk.refusal("conversation.item.create", item=same))["code"] == "duplicate_item_id"


async def test_a_response_beside_the_conversation() -> None:
    async with served() as server, server.talk() as talk:
        await talk.update(output_modalities=["text"])
        await talk.write("Hi")
        server.pipeline.hangs_after = 1
        await talk.send("response.create")
        await talk.until("response.output_text.delta")
        error = await talk.refusal("response.create")
        assert error["code"] == "conversation_already_has_active_response"
        server.pipeline.hangs_after = None
        said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Aside"}]}
        response = await talk.respond(
            conversation="none", input=[said], instructions="Classify.", metadata={"topic": "x"}
        )
        assert (response["conversation_id"], response["metadata"]) == (None, {"topic": "x"})
        assert await server.messages() == [
            {"role": "system", "content": "Classify."},
            {"role": "user", "content": [{"type": "text", "text": "Aside"}]},
        ]
        await talk.send("response.cancel")
        await talk.until("response.done")
        await talk.respond()
        assert [message["role"] for message in await server.messages()] == ["user", "assistant"]


async def test_errors_name_the_event_and_its_field_and_the_session_goes_on() -> None:
    wrong: list[tuple[str, dict[str, Any], str | None, str]] = [
        ("session.updat", {}, "type", "invalid_value"),
        ("session.update", {}, "session", "missing_required_parameter"),
        ("session.update", {"session": {"voice": "x"}}, "session.voice", "unknown_parameter"),
        ("session.update", {"session": {"output_modalities": ["text", "audio"]}}, None, "invalid_value"),
        (
            "session.update",
            {"session": {"audio": {"output": {"voice": "nobody"}}}},
            "session.audio.output.voice",
            "unsupported_value",
        ),
        ("input_audio_buffer.append", {"audio": "?"}, "audio", "invalid_base64"),
        ("input_audio_buffer.commit", {}, None, "input_audio_buffer_commit_empty"),
        ("conversation.item.create", {"item": {"type": "mcp_call"}}, "item.type", "invalid_value"),
        (
            "conversation.item.create",
            {"item": {"type": "message", "role": "user", "content": [{"type": "output_text", "text": "x"}]}},
            "item.content[0].type",
            "invalid_value",
        ),
        (
            "conversation.item.create",
            {"item": {"type": "message", "role": "user", "content": [{"type": "input_image"}]}},
            "item.content[0]",
            "unsupported_value",
        ),
        ("response.create", {"response": {"colour": 1}}, "response.colour", "unknown_parameter"),
        ("response.create", {"response": {"max_output_tokens": 0}}, None, "invalid_value"),
    ]
    async with served() as server, server.talk() as talk:
        for kind, fields, param, code in wrong:
            error = await talk.refusal(kind, **fields)
            assert (error["type"], error["code"]) == ("invalid_request_error", code), error
            if param is not None:
                assert error["param"] == param, error
        await talk.connection.send_raw("{")
        assert (await talk.until("error"))["error"]["code"] == "invalid_json"
        await talk.connection.send_raw("[1]")
        assert (await talk.until("error"))["error"]["code"] == "invalid_type"
        await talk.write("Hi")
        server.pipeline.error = RuntimeError("stage thinker is gone")
        response = await talk.respond()
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["message"] == "stage thinker is gone"
        server.pipeline.error = None
        assert (await talk.respond())["status"] == "completed"
        server.pipeline.finish_reason = "length"
        assert (await talk.respond())["status_details"]["reason"] == "max_output_tokens"


async def test_what_the_pipeline_cannot_do_is_refused() -> None:
    writes = frozenset({"text"})
    abilities = replace(
        CAPABILITIES, tasks=frozenset({"chat"}), input_modalities=writes, output_modalities=writes
    )
    async with served(capabilities=abilities, model_name="m") as server, server.talk(model="m") as talk:
        audio = base64.b64encode(CLIP).decode()
        assert (await talk.refusal("input_audio_buffer.append", audio=audio))["code"] == "unsupported_value"
        for session_fields, code in (
            ({"output_modalities": ["audio"]}, "unsupported_value"),
            ({"audio": {"input": {"transcription": {}}}}, "unsupported_task"),
            ({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}, "unsupported_value"),
        ):
            assert (await talk.refusal("session.update", session=session_fields))["code"] == code
        await talk.write("Hi")
        assert (await talk.respond())["output_modalities"] == ["text"]
        url = f"ws://127.0.0.1:{server.port}/v1/realtime"
        for query, code in (("model=other", "model_not_found"), ("intent=transcription", "unsupported_task")):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{url}?{query}", proxy=None)
            assert json.loads(refused.value.response.body or b"")["error"]["code"] == code


async def test_a_prompt_that_is_too_long_goes_without_its_oldest_turns() -> None:
    async with served() as server, server.talk() as talk:
        await talk.update(output_modalities=["text"])
        for text in ("a", "b", "c"):
            await talk.write(text)
            await talk.respond()
        server.pipeline.most_messages = 3
        await talk.write("d")
        assert (await talk.respond())["status"] == "completed"
        kept = [message["content"] for message in await server.messages()]
        assert kept[-1] == [{"type": "text", "text": "d"}]
        assert len(kept) <= 3
        assert (await server.messages())[0]["role"] == "user"
        await talk.update(truncation="disabled")
        server.pipeline.most_messages = 0
        response = await talk.respond()
        assert response["status_details"]["error"]["code"] == "context_length_exceeded"


async def test_a_client_that_leaves_frees_everything() -> None:
    async with served() as server:
        async with server.talk() as talk:
            server.pipeline.hangs_after = 1
            await talk.write("Hi")
            for fields in ({}, {"conversation": "none"}):
                await talk.send("response.create", response=fields)
                await talk.until("response.output_audio_transcript.delta")
            assert server.state.admission.running == 2
            assert server.state.realtime.count == 1
            ids = [request_id for request_id, _ in server.pipeline.requests]
        await server.is_free()
        assert set(ids) <= set(server.pipeline.aborted)


async def test_a_full_server_fails_the_response_alone() -> None:
    async with served(limits=AdmissionLimits(1, 0)) as server, server.talk() as talk:
        server.pipeline.hangs_after = 1
        await talk.write("Hi")
        await talk.send("response.create")
        await talk.until("response.output_audio_transcript.delta")
        response = await talk.respond(conversation="none")
        assert response["status_details"]["error"]["code"] == "rate_limit_exceeded"
        server.pipeline.hangs_after = None
        await talk.send("response.cancel")
        await talk.until("response.done")
        assert (await talk.respond())["status"] == "completed"


async def test_a_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_SECONDS", 2.0)
    monkeypatch.setattr("sglang_omni.serve.realtime.input_buffer.MAX_SECONDS", 0.9)
    monkeypatch.setattr(conversation, "MAX_ITEMS", 3)
    monkeypatch.setattr(conversation, "MAX_AUDIO_S", 0.9)
    async with served() as server, server.talk() as talk:
        audio = base64.b64encode(CLIP).decode()
        await talk.send("input_audio_buffer.append", audio=audio)
        error = await talk.refusal("input_audio_buffer.append", audio=audio)
        assert error["code"] == "input_audio_buffer_full"
        await talk.send("input_audio_buffer.commit")
        await talk.until("conversation.item.done")
        await talk.send("input_audio_buffer.append", audio=audio)
        assert (await talk.refusal("input_audio_buffer.commit"))["code"] == "conversation_full"
        # What the pipeline has heard of a turn is kept instead of its sound.
        server.pipeline.heard = "what I said"
        await talk.respond()
        await talk.speak()
        assert (await talk.refusal("response.create"))["code"] == "conversation_full"
        server.state.realtime.limit = 1
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{server.port}/v1/realtime", proxy=None)
        assert refused.value.response.status_code == 429


async def test_a_session_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime_route, "MAX_SECONDS_OF_SESSION", 0.5)
    async with served() as server, server.talk() as talk:
        assert (await talk.until("error"))["error"]["code"] == "session_expired"
        with pytest.raises(ConnectionClosed) as closed:
            await talk.connection.recv_bytes()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        await server.is_free()


async def read_on(socket: ClientConnection) -> None:
    while True:
        await socket.recv()


async def test_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING_BYTES", 1 << 20)
    async with served() as server:
        server.pipeline.samples = np.zeros(300 * RATE, np.float32)
        socket = await connect(
            f"ws://127.0.0.1:{server.port}/v1/realtime", proxy=None, max_queue=1, max_size=None
        )
        content = [{"type": "input_text", "text": "Hi"}]
        item = {"type": "message", "role": "user", "content": content}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        await socket.send(json.dumps({"type": "response.create"}))
        with pytest.raises(ConnectionClosed) as closed:
            await read_on(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        await server.is_free()
