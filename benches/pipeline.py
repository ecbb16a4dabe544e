"""Three SimpleScheduler stages: latency of one request at a time, and requests per second of many.

python benches/pipeline.py [--seconds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from measure import show_time, table, write_results

from sglang_omni.config import PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.mp_runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

MIB = 1 << 20
CHUNK = 4096


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
        payload.data = 0 if tensor is None else int(tensor[-1])
        return payload

    return SimpleScheduler(compute)


class Chunks(SimpleScheduler):
    """Streams as many 4 KiB chunks as the request asks for, stamped with the time they left."""

    def __init__(self) -> None:
        super().__init__(self._run)

    def _run(self, payload: StagePayload) -> StagePayload:
        gap = payload.request.params["gap"]
        for _ in range(payload.request.params["chunks"]):
            stamped = {"bytes": b"x" * CHUNK, "sent": time.monotonic()}
            self.outbox.put(OutgoingMessage(payload.request_id, "stream", stamped))
            if gap:
                time.sleep(gap)
        return payload


class Collect:
    """Counts a request's chunks and how long each was under way."""

    def __init__(self) -> None:
        import queue

        self.inbox: queue.Queue[Any] = queue.Queue()
        self.outbox: queue.Queue[OutgoingMessage] = queue.Queue()

    def start(self) -> None:
        delays: list[float] = []
        began = 0.0
        while (message := self.inbox.get()) is not None:
            assert isinstance(message, IncomingMessage)
            if message.type == "stream_chunk":
                now = time.monotonic()
                began = began or now
                delays.append(now - message.data.data["sent"])
            elif message.type == "stream_done":
                took = time.monotonic() - began
                answer = {"count": len(delays), "p50": statistics.median(delays), "seconds": took}
                delays, began = [], 0.0
                self.outbox.put(OutgoingMessage(message.request_id, "result", answer))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        pass


def three_stages(processes: tuple[str, str, str], nbytes: int = 0) -> PipelineConfig:
    a, b, c = processes
    here = "pipeline"
    relay = RelayConfig(slot_size_mb=64, credits=4)
    return PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(
                name="one",
                process=a,
                factory=f"{here}.create_pass",
                factory_args={"nbytes": nbytes},
                next="two",
                relay=relay,
            ),
            StageConfig(name="two", process=b, factory=f"{here}.create_pass", next="three", relay=relay),
            StageConfig(name="three", process=c, factory=f"{here}.create_finish", terminal=True, relay=relay),
        ],
    )


def streaming() -> PipelineConfig:
    return PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(name="one", process="a", factory="pipeline.Chunks", next="two", stream_to=["two"]),
            StageConfig(
                name="two",
                process="b",
                factory="pipeline.Collect",
                terminal=True,
                can_accept_stream_before_payload=True,
            ),
        ],
    )


async def latencies(coordinator: Any, count: int) -> list[float]:
    samples = []
    for number in range(count):
        began = time.perf_counter()
        await coordinator.submit(f"latency-{number}", OmniRequest(inputs="x"))
        samples.append(time.perf_counter() - began)
    return samples[count // 10 :]


async def throughput(coordinator: Any, clients: int, seconds: float) -> float:
    finished = 0
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal finished
        sent = 0
        while time.perf_counter() < end:
            await coordinator.submit(f"load-{number}-{sent}", OmniRequest(inputs="x"))
            sent += 1
            finished += 1

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return finished / (time.perf_counter() - began)


async def measure(seconds: float) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    for name, processes, nbytes, count, clients in (
        ("own processes, no tensor", ("a", "b", "c"), 0, 2000, 16),
        ("own processes, 16 MiB tensor", ("a", "b", "c"), 16 * MIB, 200, 4),
        ("one process", ("a", "a", "a"), 0, 2000, 64),
    ):
        async with MultiProcessPipelineRunner(three_stages(processes, nbytes)) as runner:
            samples = await latencies(runner.coordinator, count)
            results[name] = {
                "p50_s": statistics.median(samples),
                "clients": clients,
                "requests_per_s": await throughput(runner.coordinator, clients, seconds),
            }
    async with MultiProcessPipelineRunner(streaming()) as runner:
        quiet = await runner.coordinator.submit("quiet", OmniRequest("x", {"chunks": 500, "gap": 0.002}))
        await runner.coordinator.submit("warm", OmniRequest("x", {"chunks": 2000, "gap": 0}))
        full = await runner.coordinator.submit("full", OmniRequest("x", {"chunks": 50_000, "gap": 0}))
        results["stream chunk hop, 4 KiB"] = {
            "p50_s": quiet["p50"],
            "chunks_per_s": full["count"] / full["seconds"],
        }
    return results


TARGETS = {
    "own processes, no tensor": "3.4 ms, 650/s; 1.2 ms, 2000/s; 0.5 ms, 5000/s",
    "own processes, 16 MiB tensor": "55 ms; 12 ms; 5 ms",
    "one process": "0.81 ms, 6506/s; 0.4 ms, 8000/s; 0.15 ms, 15000/s",
    "stream chunk hop, 4 KiB": "0.85 ms, 2686/s; 0.25 ms, 10000/s; 0.1 ms, 25000/s",
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each load runs")
    results = asyncio.run(measure(parser.parse_args().seconds))
    rows = [
        [
            name,
            show_time(values["p50_s"]),
            f"{values.get('requests_per_s', values.get('chunks_per_s', 0)):,.0f}/s",
            TARGETS[name],
        ]
        for name, values in results.items()
    ]
    print(table(["case", "p50", "throughput", "peer; must reach; aim for"], rows))
    write_results("pipeline", results)
