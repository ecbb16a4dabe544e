"""What the prefix tree learns from prompts that workers took, and from what they say of their caches."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from router_harness import Handler, Seen, comes_to, launched, metric, post, replicas, response, router, until

KNOWN = "a system prompt that everybody sends. " * 100


def ask_of(prompt: str, **fields: object) -> bytes:
    return json.dumps({"prompt": prompt} | fields).encode()


def usage(prompt: int, cached: int) -> bytes:
    details = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    return json.dumps({"choices": [], "usage": details}).encode()


async def picky(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Refuses what is longer than its context, as servers do; knows nothing of what it takes."""
    if len(seen.body) > 100_000:
        writer.write(response(b"too long", "400 Bad Request"))
    else:
        writer.write(response(usage(1000, 0), headers="content-type: application/json\r\n"))


def reporting(prompt: int, cached: int, kind: str = "application/json") -> Handler:
    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(usage(prompt, cached), headers=f"content-type: {kind}\r\n"))

    return handler


async def matched_by(url: str, body: bytes) -> float:
    """Bytes of a prompt that its worker had seen, as far as the router knows."""
    before = await metric(url, "matched_bytes_total")
    assert (await post(url, body)).status == 200
    return await metric(url, "matched_bytes_total") - before


async def test_prompts_that_a_worker_refuses_teach_nothing_and_evict_nothing() -> None:
    async with replicas(picky) as [one], router(one, policy="cache_aware") as url:
        assert (await post(url, ask_of(KNOWN))).status == 200
        learned = await metric(url, "tree_bytes")
        assert learned >= len(KNOWN)
        for index in range(18):
            assert (await post(url, ask_of(f"{index} " + "z" * 1_000_000))).status == 400
        assert await metric(url, "tree_bytes") == learned
        assert await metric(url, "tree_pending_bytes") == 0
        assert await matched_by(url, ask_of(KNOWN)) == len(KNOWN)


async def test_a_prompt_whose_client_left_or_whose_worker_broke_off_is_not_learned() -> None:
    async def breaks_off(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b"leaves" in seen.body:
            await asyncio.sleep(60)
        writer.transport.abort()

    async with replicas(breaks_off) as [one], router(one, policy="cache_aware") as url:
        assert (await post(url, ask_of("breaks " + KNOWN))).status == 502
        leaving = asyncio.create_task(post(url, ask_of("leaves " + KNOWN)))

        async def is_at_the_worker() -> bool:
            return len(one.seen) == 2 and await metric(url, "tree_pending_bytes") > len(KNOWN)

        await until(is_at_the_worker, "the second request is at the worker, its prompt provisional")
        assert await metric(url, "tree_bytes") == 0
        leaving.cancel()

        await comes_to(0, metric, url, "tree_pending_bytes")
        assert await metric(url, "tree_bytes") == 0


async def test_a_burst_of_one_prefix_goes_together_before_the_first_answer() -> None:
    ready = asyncio.Event()

    async def slow(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await ready.wait()
        writer.write(response(usage(1000, 0), headers="content-type: application/json\r\n"))

    async with replicas(slow, slow, slow, slow) as four, router(*four, policy="cache_aware") as url:
        burst = [asyncio.create_task(post(url, ask_of(KNOWN + str(index)))) for index in range(2)]

        await until(lambda: sum(len(replica.seen) for replica in four) == 2, "both are at workers")
        assert sorted(len(replica.seen) for replica in four) == [0, 0, 0, 2]
        assert await metric(url, "tree_bytes") == 0
        ready.set()
        assert {(await request).status for request in burst} == {200}
        assert await metric(url, "tree_bytes") > len(KNOWN)


async def test_prompts_too_short_to_judge_by_correct_nothing() -> None:
    """A cache of blocks never has a prompt shorter than a block, however often it is asked."""
    async with replicas(reporting(3, 0)) as [one], router(one, policy="cache_aware") as url:
        for index in range(4):
            assert (await post(url, ask_of(f"{index} " + "known " * 2000))).status == 200
        for index in range(6):
            assert (await post(url, ask_of("hello!"))).status == 200
            assert (await post(url, ask_of(f"cold {index}"))).status == 200
        assert await metric(url, "tree_corrections_total") == 0
        prompt = "0 " + "known " * 2000
        assert await matched_by(url, ask_of(prompt)) == len(prompt)


async def test_requests_that_pass_by_the_cache_correct_nothing() -> None:
    passing_by = [
        {"echo": True, "logprobs": 1},
        {"prompt_logprobs": 1},
        {"return_logprob": True, "logprob_start_len": 0},
    ]
    async with replicas(reporting(1000, 0)) as [one], router(one, policy="cache_aware") as url:
        for index in range(4):
            assert (await post(url, ask_of(f"{index} " + KNOWN))).status == 200
        learned = await metric(url, "tree_bytes")
        for fields in passing_by:
            for index in range(4):
                assert (await post(url, ask_of(f"{index} " + KNOWN, **fields))).status == 200
        assert await metric(url, "tree_corrections_total") == 0
        assert await metric(url, "tree_bytes") == learned
        # What has a salt is cached apart from what has none, or another.
        for _ in range(3):
            for index in range(4):
                assert (await post(url, ask_of(f"{index} " + KNOWN, cache_salt="s"))).status == 200
        assert await metric(url, "tree_corrections_total") == 0
        assert await matched_by(url, ask_of(f"0 {KNOWN}", cache_salt="other")) < 10


async def test_only_answers_in_json_or_events_are_searched_for_usage() -> None:
    async with (
        replicas(reporting(1000, 900, "text/plain")) as [one],
        router(one, policy="cache_aware") as url,
    ):
        for _ in range(3):
            assert (await post(url, ask_of(KNOWN))).status == 200
        assert await metric(url, "prompt_tokens_total") == 0


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


async def test_names_of_models_that_clients_make_up_take_no_memory() -> None:
    async with (
        replicas(None) as [one],
        launched("--worker-urls", one.url, "--policy", "cache_aware", "--threads", "1") as (process, url),
    ):
        for index in range(5):
            await post(url, ask_of("hi", model=f"{index}" + "m" * 500_000))
        before = resident(process.pid)
        for index in range(200):
            assert (await post(url, ask_of("hi", model=f"{index:05}" + "n" * 500_000))).status == 200
        taken = resident(process.pid) - before
        assert taken < 20 << 20
        # What each name makes of the tree is counted, though it is little.
        assert 205 * 100 < await metric(url, "tree_bytes") < 205 * 2000


def as_events(cached: int) -> Handler:
    """The usage comes in two chunks of a stream, and an event follows it."""

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        event = b"data: " + usage(500, cached)
        for piece in (b'data: {"choices": []}\n\n', event[:50], event[50:] + b"\n\n", b"data: [DONE]\n\n"):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    return handler


async def ask(url: str, prompt: str) -> None:
    assert (await post(url, json.dumps({"prompt": prompt}).encode())).status == 200


async def test_cached_tokens_are_read_from_json_and_from_streams() -> None:
    for handler in (reporting(500, 96), as_events(96)):
        async with replicas(handler) as [one], router(one, policy="cache_aware") as url:
            for turn in range(3):
                await ask(url, f"turn {turn}")

            await comes_to(1500, metric, url, "prompt_tokens_total")
            assert await metric(url, "cached_tokens_total") == 3 * 96


async def test_a_worker_that_has_lost_its_cache_loses_its_part_of_the_tree() -> None:
    async with replicas(reporting(500, 0)) as [one], router(one, policy="cache_aware") as url:
        for prompt in range(20):
            await ask(url, f"{prompt} " + "x" * 2000)
        assert await metric(url, "tree_bytes") > 40_000
        for prompt in (0, 15):
            await ask(url, f"{prompt} " + "x" * 2000)

        await comes_to(1, metric, url, "tree_corrections_total")
        # Two misses may be two clients' own doing: they cost half of what is known.
        assert 15_000 < await metric(url, "tree_bytes") < 26_000


async def test_other_policies_do_not_look_at_answers() -> None:
    async with replicas(reporting(500, 50)) as [one], router(one, policy="round_robin") as url:
        await ask(url, "a prompt")
        assert await metric(url, "prompt_tokens_total") == 0
