"""The router as one hop among several: what it adds, what it answers in the place of what is behind it."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime

import pytest
from router_harness import (
    Answer,
    Seen,
    assert_error,
    connect,
    get,
    post,
    read_body,
    read_head,
    replicas,
    response,
    router,
    send_raw,
)

DATED = "Date: Tue, 15 Nov 1994 08:12:31 GMT\r\n"


def named(seen: Seen, name: str) -> list[str]:
    return [value for key, value in seen.headers if key.lower() == name]


async def ask(url: str, line: str, headers: str = "") -> Answer:
    return await send_raw(url, f"{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())


async def test_workers_are_told_of_the_hop() -> None:
    async with replicas(None) as [one], router(one) as url:
        await post(url)
        await post(url, headers="Via: 1.0 fred, 1.1 p.example\r\n")
        await ask(url, "GET /s", "Connection: upgrade\r\nUpgrade: websocket\r\n")
        await send_raw(url, b"GET /old HTTP/1.0\r\n\r\n")
        assert [named(seen, "via") for seen in one.seen] == [
            ["1.1 sglang-omni-router"],
            ["1.0 fred, 1.1 p.example", "1.1 sglang-omni-router"],
            ["1.1 sglang-omni-router"],
            ["1.0 sglang-omni-router"],
        ]


async def test_answers_are_dated() -> None:
    async def dated(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(headers=DATED))

    async with replicas(dated, None) as [old, one]:
        async with router(old) as url:
            answer = await post(url)
            assert [value for name, value in answer.headers if name.lower() == "date"] == [DATED[6:].strip()]
        async with router(one) as url:
            for answer in (
                await post(url),
                await get(url, "/health"),
                await get(url, "/workers"),
                await ask(url, "PUT /workers"),
                await ask(url, "TRACE /"),
                await send_raw(url, b"nonsense\r\n\r\n"),
            ):
                assert parsedate_to_datetime(answer.header("date") or "").year > 2000, answer


@pytest.mark.parametrize("headers", ["", "Max-Forwards: 0\r\n", "Max-Forwards: 5\r\n"])
async def test_trace_is_refused(headers: str) -> None:
    """An answer would show what was added on the way, keys among it."""
    async with replicas(None) as [one], router(one, worker_api_key="secret") as url:
        answer = await ask(url, "TRACE /v1/models", headers)
        assert_error(answer, 405, "TRACE")
        assert "TRACE" not in (answer.header("allow") or "TRACE")
        assert one.seen == []


async def test_options_go_as_far_as_they_may() -> None:
    async with replicas(None) as [one], router(one) as url:
        answer = await ask(url, "OPTIONS /v1/chat/completions", "Max-Forwards: 0\r\n")
        assert (answer.status, one.seen) == (204, [])
        assert "POST" in (answer.header("allow") or "")
        for given, passed in (("2", "1"), ("1", "0"), ("x", "x")):
            assert (await ask(url, "OPTIONS /x", f"Max-Forwards: {given}\r\n")).status == 200
            assert one.seen[-1].header("max-forwards") == passed
        assert (await ask(url, "OPTIONS /x")).status == 200
        await ask(url, "GET /x", "Max-Forwards: 0\r\n")
        assert len(one.seen) == 5


async def test_models_are_asked_for_on_kept_connections() -> None:
    connections = set()

    async def lists(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        connections.add(writer.get_extra_info("peername"))
        writer.write(response(b'{"object": "list", "data": [{"id": "m"}]}'))

    async with replicas(lists) as [one], router(one) as url:
        for _ in range(10):
            assert b'"m"' in (await get(url, "/v1/models")).body
        assert len(one.seen) == 10
    assert len(connections) == 1


async def test_models_are_asked_for_again_where_a_kept_connection_was_closed() -> None:
    async def lists(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if len(one.seen) % 2 == 0:
            writer.transport.abort()
            return
        writer.write(response(b'{"object": "list", "data": [{"id": "m"}]}'))

    async with replicas(lists) as [one], router(one) as url:
        for _ in range(3):
            assert b'"m"' in (await get(url, "/v1/models")).body


async def test_bodies_that_are_held_have_a_bound_together() -> None:
    async with replicas(None) as [one], router(one, max_held_bytes=2_050_000) as url:
        slow = []
        for _ in range(3):
            reader, writer = await connect(url)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 700_000)
            slow.append((reader, writer))
            await asyncio.sleep(0.3)  # So that it is the last one which is too much.
        line, headers = await asyncio.wait_for(read_head(slow[2][0]), 60)
        answer = Answer(line, headers, await read_body(slow[2][0], headers))
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        assert b"router_out_of_resources" in answer.body
        assert b"max_held_bytes" in answer.body
        # What fits goes on, and what was held is free again.
        for reader, writer in slow[:2]:
            writer.write(b"x" * 300_000)
            assert "200" in (await read_head(reader))[0]
        assert (await post(url, b"x" * 1_000_000)).status == 200
        for _, writer in slow:
            writer.close()
