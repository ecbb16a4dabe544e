"""Two servers that publish what is in their caches, and a router that goes by it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_harness import comes_to, listed, metric, post, router
from served_process import served_process
from text_engines import prompts
from tiny_checkpoints import TinyCheckpoint, with_tokenizer
from waiting import PATIENCE

pytestmark = pytest.mark.long

PAGE = 16


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[..., TinyCheckpoint]
) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("published")
    model = with_tokenizer(tiny_checkpoint("llama"), folder / "tiny")
    ports = free_ports(4)
    with ExitStack() as running:
        urls = []
        for index in range(2):
            live, replay = (f"tcp://127.0.0.1:{port}" for port in ports[2 * index : 2 * index + 2])
            config = json.dumps({"endpoint": live, "replay_endpoint": replay})
            flags = ("--model-path", str(model), "--max-total-tokens", str(40 * PAGE))
            server = served_process(folder / f"log{index}", *flags, "--kv-events-config", config)
            urls.append(running.enter_context(server).base_url)
        yield urls


def ask(url: str, tokens: list[int]) -> None:
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text


async def coverage(url: str) -> list[Any]:
    return [worker["cache_events"] and worker["cache_events"]["coverage"] for worker in await listed(url)]


async def blocks(url: str) -> float:
    return await metric(url, "cache_blocks")


async def goes_to(url: str, tokens: list[int]) -> str | None:
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0}
    answer = await post(url, json.dumps(body).encode(), path="/v1/completions")
    assert answer.status == 200, answer.body
    return answer.header("x-sglang-omni-worker")


async def test_prompts_go_where_servers_say_that_they_are(servers: list[str]) -> None:
    first, second = prompts(0, [8 * PAGE, 8 * PAGE])
    async with router(*servers, policy="cache_aware", kv_events="auto") as url:
        await comes_to(["whole", "whole"], coverage, url)
        # The router does not see them.
        ask(servers[1], [*first, 1])
        ask(servers[0], [*second, 1])
        await comes_to(16.0, blocks, url)
        for rest in range(2, 5):
            assert await goes_to(url, [*first, rest]) == servers[1]
            assert await goes_to(url, [*second, rest]) == servers[0]
        # It is lost there, and comes to the other server.
        assert (await post(servers[1], path="/flush_cache")).status == 200
        await comes_to(8.0, blocks, url)
        ask(servers[0], [*first, 5])
        await comes_to(16.0, blocks, url)
        for rest in range(6, 9):
            assert await goes_to(url, [*first, rest]) == servers[0]
        # A router that comes later learns it from what is sent again.
        async with router(*servers, policy="cache_aware", kv_events="auto") as later:
            await comes_to(["whole", "whole"], coverage, later)
            assert await goes_to(later, [*first, 9]) == servers[0]


def test_servers_say_where_they_publish(servers: list[str]) -> None:
    info = httpx.get(f"{servers[0]}/get_server_info", timeout=PATIENCE).json()
    config = json.loads(info["kv_events_config"])
    assert config["publisher"] == "zmq"
    assert config["endpoint"].startswith("tcp://127.0.0.1:")


def test_a_port_that_is_taken_ends_the_start(
    tmp_path: Path, servers: list[str], tiny_checkpoint: Callable[..., TinyCheckpoint]
) -> None:
    info = httpx.get(f"{servers[0]}/get_server_info", timeout=PATIENCE).json()
    model = with_tokenizer(tiny_checkpoint("llama"), tmp_path / "tiny")
    flags = ("--model-path", str(model), "--kv-events-config", info["kv_events_config"])
    with pytest.raises(AssertionError), served_process(tmp_path / "log", *flags):
        pass
    assert "cannot listen on tcp://127.0.0.1:" in (tmp_path / "log").read_text()
