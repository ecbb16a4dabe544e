"""A worker of SGLang or vLLM as the router sees it: HTTP, and its cache's events over real ZeroMQ sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from router_harness import Replica, Seen, response

BLOCK = 4
END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Publishes batches as both engines do: a PUB socket, and a ROUTER socket that sends the last ones again.

    Args:
        form: What is sent, as by "old" engines (arrays), "vllm" (maps), or "sglang" (maps in an array, and
            replays that repeat the topic).
        kept: Batches that can be had again.
        replays: There is a socket for that.
    """

    def __init__(self, *, form: str = "old", kept: int = 10_000, replays: bool = True) -> None:
        self.form = form
        self.numbers: Iterator[int] = iter(range(1 << 62))
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self.replays = replays
        self.asked: list[int] = []
        self.port = self.replay_port = 0
        self._hashes: dict[tuple[int, ...], int] = {}
        self._next_hash = -5  # Signed, as SGLang's are.

    def config(self) -> dict[str, Any]:
        config = {"publisher": "zmq", "endpoint": f"tcp://*:{self.port}"}
        return config | ({"replay_endpoint": f"tcp://*:{self.replay_port}"} if self.replays else {})

    def info(self) -> dict[str, Any]:
        """SGLang shows the flag as text, and from 0.5.20 or so on what it makes of it."""
        shown: dict[str, Any] = {"kv_events_config": json.dumps(self.config()), "dp_size": 1}
        if self.form == "sglang":
            ports = {"endpoint_port_base": self.port, "replay_endpoint_port_base": self.replay_port}
            shown["kv_events"] = {"publisher": "zmq", "topic": "", "dp_size": 1} | ports
        return shown

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        context = zmq.asyncio.Context()
        self._pub, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self.port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self.replay_port = replay.bind_to_random_port("tcp://127.0.0.1")
        task = asyncio.create_task(self._replay(replay))
        try:
            yield
        finally:
            task.cancel()
            context.destroy(linger=0)

    async def _replay(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            client, empty, start = await socket.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            head = [client, empty, b""] if self.form == "sglang" else [client, empty]
            for number, payload in self.kept:
                if number >= first:
                    await socket.send_multipart([*head, number.to_bytes(8, "big"), payload])
            await socket.send_multipart([*head, END, b""])

    async def publish(self, *events: list[Any], lost: bool = False) -> None:
        names = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"]
        batch: Any = [time.time(), list(events), 0]
        if self.form != "old":
            batch[1] = [{"type": kind} | dict(zip(names, rest, strict=False)) for kind, *rest in events]
        if self.form == "vllm":
            batch = dict(zip(["ts", "events", "data_parallel_rank"], batch, strict=True))
        payload = msgspec.msgpack.encode(batch)
        number = next(self.numbers)
        if not lost:
            await self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])
        self.kept.append((number, payload))

    def stored(self, tokens: list[int]) -> list[Any]:
        """The event for a prompt's blocks, whose beginning may be known."""
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        new = [end for end in ends if tuple(tokens[:end]) not in self._hashes]
        parent = self._hashes.get(tuple(tokens[: new[0] - BLOCK]))
        for end in new:
            self._hashes[tuple(tokens[:end])] = self._next_hash
            self._next_hash += 7
        names = [self._hashes[tuple(tokens[:end])] for end in new]
        return ["BlockStored", names, parent, tokens[new[0] - BLOCK : new[-1]], BLOCK, None, "GPU"]

    def removed(self, tokens: list[int]) -> list[Any]:
        """The event for the last block of a prompt."""
        return ["BlockRemoved", [self._hashes.pop(tuple(tokens))]]


async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(response(b"{}"))


class PublishingReplica(Replica):
    """Says in `/get_server_info` where its events are."""

    def __init__(self, publisher: Publisher | None) -> None:
        self.publisher = publisher
        super().__init__(self._serve_info)

    async def _serve_info(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.line.split(" ")[1] == "/get_server_info":
            writer.write(response(json.dumps(self.publisher.info() if self.publisher else {}).encode()))
        else:
            await answer(seen, writer)


@contextlib.asynccontextmanager
async def publishing(*publishers: Publisher | None) -> AsyncIterator[list[PublishingReplica]]:
    async with contextlib.AsyncExitStack() as stack:
        replicas = [PublishingReplica(publisher) for publisher in publishers]
        for replica in replicas:
            if replica.publisher:
                await stack.enter_async_context(replica.publisher.serving())
            await replica.start()
            stack.push_async_callback(replica.stop)
        yield replicas
