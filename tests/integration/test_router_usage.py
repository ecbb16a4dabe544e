"""What workers say of their caches: counted, and believed against the router's own memory."""

from __future__ import annotations

import asyncio
import json

from router_harness import Handler, Seen, comes_to, metric, post, replicas, response, router


def usage(cached: int) -> bytes:
    details = {"prompt_tokens": 500, "prompt_tokens_details": {"cached_tokens": cached}}
    return json.dumps({"choices": [], "usage": details, "object": "chat.completion"}).encode()


def in_one_piece(cached: int) -> Handler:
    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(usage(cached), headers="content-type: application/json\r\n"))

    return handler


def as_events(cached: int) -> Handler:
    """The usage comes in two chunks of a stream, and an event follows it."""

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        event = b"data: " + usage(cached)
        for piece in (b'data: {"choices": []}\n\n', event[:50], event[50:] + b"\n\n", b"data: [DONE]\n\n"):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    return handler


async def ask(url: str, prompt: str) -> None:
    assert (await post(url, json.dumps({"prompt": prompt}).encode())).status == 200


async def test_cached_tokens_are_read_from_json_and_from_streams() -> None:
    for handler in (in_one_piece(96), as_events(96)):
        async with replicas(handler) as [one], router(one, policy="cache_aware") as url:
            for turn in range(3):
                await ask(url, f"turn {turn}")

            await comes_to(1500, metric, url, "prompt_tokens_total")
            assert await metric(url, "cached_tokens_total") == 3 * 96


async def test_a_worker_that_has_lost_its_cache_loses_its_part_of_the_tree() -> None:
    async with replicas(in_one_piece(0)) as [one], router(one, policy="cache_aware") as url:
        for prompt in range(20):
            await ask(url, f"{prompt} " + "x" * 2000)
        assert await metric(url, "tree_bytes") > 40_000
        for prompt in (0, 15):
            await ask(url, f"{prompt} " + "x" * 2000)

        await comes_to(1, metric, url, "tree_corrections_total")
        assert await metric(url, "tree_bytes") < 15_000


async def test_other_policies_do_not_look_at_answers() -> None:
    async with replicas(in_one_piece(50)) as [one], router(one, policy="round_robin") as url:
        await ask(url, "a prompt")
        assert await metric(url, "prompt_tokens_total") == 0
