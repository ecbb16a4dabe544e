"""The router follows what workers publish of their caches, over real ZeroMQ sockets."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import pytest
from kv_publisher import BLOCK, Publisher, PublishingReplica, publishing
from router_harness import comes_to, launched, listed, metric, post, router
from waiting import PATIENCE

PROMPT = list(range(1000, 1000 + 64 * BLOCK))


async def goes_to(
    url: str, replicas: list[PublishingReplica], tokens: list[int], path: str = "/generate"
) -> int:
    """The index of the replica that gets a prompt of token ids."""
    field = "input_ids" if path == "/generate" else "prompt"
    answer = await post(url, json.dumps({field: tokens}).encode(), path=path)
    assert answer.status == 200
    return [replica.url for replica in replicas].index(answer.header("x-sglang-omni-worker") or "")


async def coverage(url: str) -> list[Any]:
    states = [worker["cache_events"] for worker in await listed(url)]
    return [state and state["coverage"] for state in states]


async def blocks(url: str) -> float:
    return await metric(url, "cache_blocks")


@pytest.mark.parametrize("form", ["old", "vllm", "sglang"])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_a_prompt_goes_where_its_blocks_are_and_not_where_they_were(form: str, path: str) -> None:
    publishers = [Publisher(form=form) for _ in range(3)]
    async with (
        publishing(*publishers) as replicas,
        router(*replicas, policy="cache_aware", kv_events="auto") as url,
    ):
        await comes_to(["whole"] * 3, coverage, url)
        # Neither the router nor its tree has seen the prompt.
        for at in (2, 0, 1):
            tokens = [at, *PROMPT[1:]]
            await publishers[at].publish(publishers[at].stored(tokens))
        await comes_to(3 * 64.0, blocks, url)
        for at in (2, 0, 1):
            for rest in range(3):
                assert await goes_to(url, replicas, [at, *PROMPT[1:], rest], path) == at
        # Gone: it goes to the one that has it now, whatever the tree remembers.
        await publishers[2].publish(["AllBlocksCleared"])
        await publishers[0].publish(publishers[0].stored([2, *PROMPT[1:]]))
        await comes_to(3 * 64.0, blocks, url)
        for rest in range(3, 6):
            assert await goes_to(url, replicas, [2, *PROMPT[1:], rest], path) == 0
        assert await metric(url, "exact_total") == 12


async def test_the_router_learns_what_was_published_before_it_started() -> None:
    async with publishing(Publisher(), Publisher()) as replicas:
        second = replicas[1].publisher
        assert second
        await second.publish(second.stored(PROMPT[: 32 * BLOCK]))
        await second.publish(second.stored(PROMPT))
        await second.publish(second.removed(PROMPT))
        async with router(*replicas, policy="cache_aware", kv_events="auto") as url:
            await comes_to(["whole"] * 2, coverage, url)
            assert await blocks(url) == 63
            assert await goes_to(url, replicas, PROMPT) == 1
            [_, state] = await listed(url)
            assert state["cache_events"]["batches"] == 3
            assert state["cache_events"]["age"] >= 0


@pytest.mark.parametrize("form", ["old", "sglang"])
async def test_lost_batches_are_fetched_again(form: str) -> None:
    publisher = Publisher(form=form)
    async with (
        publishing(publisher) as replicas,
        router(*replicas, policy="cache_aware", kv_events="auto") as url,
    ):
        await comes_to(["whole"], coverage, url)
        await publisher.publish(publisher.stored(PROMPT[: 8 * BLOCK]))
        await publisher.publish(publisher.stored(PROMPT[: 16 * BLOCK]), lost=True)
        await publisher.publish(publisher.stored(PROMPT[: 24 * BLOCK]), lost=True)
        await publisher.publish(publisher.stored(PROMPT[: 32 * BLOCK]))
        await publisher.publish(publisher.stored(PROMPT))
        await comes_to(64.0, blocks, url)
        assert publisher.asked == [0, 1]
        assert await coverage(url) == ["whole"]
        assert await metric(url, "cache_batches_missed_total") == 0


@pytest.mark.parametrize("replays", [True, False])
async def test_a_gap_that_cannot_be_closed_forgets_what_was_known(replays: bool) -> None:
    publisher = Publisher(kept=1, replays=replays)
    async with (
        publishing(publisher) as replicas,
        router(*replicas, policy="cache_aware", kv_events="auto") as url,
    ):
        if replays:
            await comes_to(["whole"], coverage, url)
        else:
            # The first batch may come before the subscription does.
            while await coverage(url) == [None]:
                await publisher.publish()
                await asyncio.sleep(0.05)
        await publisher.publish(publisher.stored(PROMPT))
        await comes_to(64.0, blocks, url)
        for _ in range(3):
            await publisher.publish(["AllBlocksCleared"], lost=True)
        await publisher.publish(publisher.stored([7, 7, 7, 7]))
        await comes_to(1.0, blocks, url)
        assert await coverage(url) == ["part"]
        assert await metric(url, "cache_batches_missed_total") == 3
        assert await metric(url, "caches_forgotten_total") == 1
        # All is known of a cache that was emptied.
        await publisher.publish(["AllBlocksCleared"])
        await comes_to(["whole"], coverage, url)


async def test_a_worker_that_starts_again_is_followed_again_and_one_that_leaves_is_forgotten() -> None:
    first = Publisher()
    async with publishing(first) as replicas:
        [replica] = replicas
        async with router(replica, policy="cache_aware", kv_events="auto") as url:
            await comes_to(["whole"], coverage, url)
            await first.publish(first.stored(PROMPT))
            await comes_to(64.0, blocks, url)
            # With other ports, as a new process has.
            replica.publisher = second = Publisher()
            async with second.serving():
                await second.publish(second.stored(PROMPT[: 4 * BLOCK]))
                first._pub.close(linger=0)
                await comes_to(4.0, blocks, url)
                await comes_to(["whole"], coverage, url)
            await comes_to(["none"], coverage, url)
            assert await blocks(url) == 0


async def test_workers_without_events_are_chosen_by_the_tree() -> None:
    publisher = Publisher()
    async with (
        publishing(publisher, None) as replicas,
        router(*replicas, policy="cache_aware", kv_events="auto") as url,
    ):
        await comes_to(["whole", None], coverage, url)
        # The first one publishes nothing of this prompt; the second one is believed to have what it answered.
        served = {await goes_to(url, replicas, [9, *PROMPT, at]) for at in range(6)}
        assert 1 in served
        stays = [await goes_to(url, replicas, [9, *PROMPT, at]) for at in range(6, 12)]
        assert stays == [1] * 6
        # Text, whose tokens are not known, goes by the tree alone.
        before = await metric(url, "exact_total")
        assert (await post(url, json.dumps({"prompt": "words " * 99}).encode())).status == 200
        assert await metric(url, "exact_total") == before


async def test_what_is_no_stream_of_events_is_given_up_and_requests_go_on() -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    option = json.dumps({"publisher": "zmq", "endpoint": f"tcp://*:{port}"})
    async with publishing(None) as replicas, router(*replicas, policy="cache_aware", kv_events=option) as url:
        for _ in range(10):
            assert await goes_to(url, replicas, PROMPT) == 0
            await asyncio.sleep(0.05)
        assert await coverage(url) == [None]
    server.close()


async def test_the_option_says_what_is_wrong() -> None:
    for wrong, words in (("on", "off, auto"), ('{"publisher": "null"}', "publishes nothing")):
        with pytest.raises(ValueError, match=f"kv_events.*{words}"):
            async with router(policy="cache_aware", kv_events=wrong):
                pass
    with pytest.raises(ValueError, match=r"kv_events.*round_robin"):
        async with router(kv_events="auto"):
            pass


async def test_a_process_shows_what_it_knows_and_ends_in_order() -> None:
    publisher = Publisher(form="sglang")
    async with publishing(publisher, None) as replicas:
        urls = [replica.url for replica in replicas]
        async with launched("--worker-urls", *urls, "--kv-events", "auto") as (process, url):
            await comes_to(["whole", None], coverage, url)
            await publisher.publish(publisher.stored(PROMPT))
            await comes_to(64.0, blocks, url)
            assert await goes_to(url, replicas, PROMPT) == 0
            command = [sys.executable, "-m", "sglang_omni.cli", "route", "top", "--url", url]
            top = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            shown, _ = await asyncio.wait_for(top.communicate(), PATIENCE)
            rows = [line.split() for line in shown.decode().splitlines()]
            assert [row[-1] for row in rows if row and row[0] in ("WORKER", *urls)] == ["BLOCKS", "64", "-"]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
