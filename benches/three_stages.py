"""The stages of the pipeline benchmark and its load, the same for us and for the peer.

Both packages are called ``sglang_omni`` and offer what is imported here; where they differ, the name
comes as an argument.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import queue
import time
from collections.abc import Callable
from typing import Any

from measure import MIB, Samples

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

CHUNK = 4096
# Of a pipeline: the processes of its three stages, bytes of its tensor, clients of its load.
PIPELINES = {
    "own processes, no tensor": (("a", "b", "c"), 0, 16),
    "own processes, 16 MiB tensor": (("a", "b", "c"), 16 * MIB, 4),
    "one process": (("a", "a", "a"), 0, 64),
}

# Makes a stage of this module: its name, process and factory, the factory's arguments, and further fields.
MakeStage = Callable[..., Any]


def three_stages(make: MakeStage, processes: tuple[str, str, str], nbytes: int) -> list[Any]:
    """The stages of requests that carry a tensor of ``nbytes``."""
    a, b, c = processes
    return [
        make("one", a, "create_pass", {"nbytes": nbytes}, next="two"),
        make("two", b, "create_pass", next="three"),
        make("three", c, "create_finish", terminal=True),
    ]


def streaming(make: MakeStage, messages: str) -> list[Any]:
    """The stages of streams of chunks. ``messages`` is the module of the package's scheduler messages."""
    args = {"messages": messages}
    return [
        make("one", "a", "Chunks", args, next="two", stream_to=["two"]),
        make("two", "b", "Collect", args, terminal=True, can_accept_stream_before_payload=True),
    ]


def create_pass(nbytes: int = 0) -> SimpleScheduler:
    """Hands the payload on; with ``nbytes`` the first stage puts a tensor of that size in."""
    tensor = None
    if nbytes:
        import torch

        tensor = torch.ones(nbytes, dtype=torch.uint8)

    def compute(payload: StagePayload) -> StagePayload:
        if tensor is not None:
            payload.data = {"tensor": tensor}
        return payload

    return SimpleScheduler(compute)


def create_finish() -> SimpleScheduler:
    """The last stage: answers with a number, so that only the way in is measured."""

    def compute(payload: StagePayload) -> StagePayload:
        tensor = payload.data.get("tensor")
        payload.data = {"last": 0 if tensor is None else int(tensor[-1])}
        return payload

    return SimpleScheduler(compute)


class Chunks(SimpleScheduler):
    """Streams as many 4 KiB chunks as the request asks for, stamped with the time they left.

    ``messages`` is the module of the package's scheduler messages.
    """

    def __init__(self, messages: str) -> None:
        super().__init__(self._run)
        import torch

        self._message: Any = importlib.import_module(messages).OutgoingMessage
        self._contents: dict[str, Any] = {
            "tensor": torch.ones(CHUNK, dtype=torch.uint8),
            "bytes": b"x" * CHUNK,
        }

    def _run(self, payload: StagePayload) -> StagePayload:
        ask = payload.request.params
        content = self._contents[ask["content"]]
        for _ in range(ask["chunks"]):
            sent = {"sent": time.monotonic()}
            self.outbox.put(self._message(payload.request_id, "stream", content, "two", sent))
            if ask["gap"]:
                time.sleep(ask["gap"])
        return payload


class Collect:
    """Answers, once a request's payload and chunks are there, how long each chunk was under way.

    One request at a time. ``messages`` as for ``Chunks``.
    """

    requires_tp_work_fanout = False  # The peer's stage asks for it.

    def __init__(self, messages: str) -> None:
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.outbox: queue.Queue[Any] = queue.Queue()
        self._message: Any = importlib.import_module(messages).OutgoingMessage

    def warm_up_serving_thread(self) -> None:
        """As the peer's stage asks for it."""

    def start(self) -> None:
        arrivals: list[float] = []
        delays: list[float] = []
        ended: set[str] = set()
        while (message := self.inbox.get()) is not None:
            if message.type == "stream_chunk":
                arrivals.append(time.monotonic())
                delays.append(arrivals[-1] - message.data.metadata["sent"])
                continue
            ended.add(message.type)
            if ended == {"new_request", "stream_done"}:
                took = arrivals[-1] - arrivals[0]
                answer = {"delays": delays, "chunks_per_s": (len(arrivals) - 1) / took}
                arrivals, delays, ended = [], [], set()
                self.outbox.put(self._message(message.request_id, "result", answer))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        """A request is over when its stream is."""


class Load:
    """What a benchmark asks of a running pipeline."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._numbers = itertools.count()

    async def _submit(self, **params: Any) -> Any:
        name = f"request {next(self._numbers)}"
        return await self._coordinator.submit(name, OmniRequest(inputs="x", params=params))

    async def latency(self, count: int) -> Samples:
        """One request at a time."""
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            await self._submit()
            samples.append(time.perf_counter() - began)
        return {"latency": samples}

    async def rate(self, clients: int, seconds: float) -> Samples:
        """Requests per second of so many clients, each with one request at a time."""
        finished = 0
        began = time.perf_counter()

        async def client() -> None:
            nonlocal finished
            while time.perf_counter() < began + seconds:
                await self._submit()
                finished += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return {"rate": [finished / (time.perf_counter() - began)]}

    async def hop(self, content: str, chunks: int) -> Samples:
        """Seconds that chunks are under way which come one at a time."""
        return {"hop": (await self._submit(content=content, chunks=chunks, gap=0.002))["delays"]}

    async def chunk_rate(self, content: str, chunks: int) -> Samples:
        """Chunks per second of one stream without gaps."""
        return {"chunk rate": [(await self._submit(content=content, chunks=chunks, gap=0))["chunks_per_s"]]}
