"""What a payload costs between two processes, against memcpy in the same run.

python benches/data_plane.py

Prints one table and writes benches/results/data_plane.json. Where `make bench-peers` has built the
peer's environment, the peer does the same work and gets a column.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import memcpy_fresh, show_time, table, timed, write_results
from two_processes import (
    KIB,
    MIB,
    SCALING,
    TOUCH,
    Line,
    copies,
    line,
    medians,
    one_thread,
    rounds_for,
    shapes,
)

from sglang_omni._core import ShmArena
from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.control_plane import StageControlPlane, decode_message, encode_message
from sglang_omni.proto import DataReadyMessage, OmniRequest, StagePayload, codec
from sglang_omni.relay import create_relay

PEER = Path(__file__).resolve().parent.parent / "build/peers/sglang-omni/bin/python"
TENSORS, TENSOR_BYTES = 200, 64 * KIB


class Ours:
    """The shm relay with relay_io, and the stages' control plane."""

    def __init__(self) -> None:
        # A reader keeps views while at most half of the room is taken: enough for 1 GiB and its header.
        self.relay = create_relay("shm", engine_id="bench", slot_size_mb=2048, credits=2)

    def payload(self, request_id: str, tensors: Any) -> StagePayload:
        return StagePayload(request_id, OmniRequest(""), tensors)

    async def write(self, payload: StagePayload) -> DataReadyMessage:
        metadata, _ = await relay_io.write_payload(self.relay, payload.request_id, payload, target="reader")
        return DataReadyMessage(payload.request_id, "writer", "reader", metadata)

    async def read(self, message: Any) -> torch.Tensor:
        payload = await relay_io.read_payload(self.relay, message.request_id, message.shm_metadata)
        tensor: torch.Tensor = payload.data["tensor"]
        return tensor

    async def settle(self) -> None:
        """Room comes back by itself."""

    def encode(self, message: DataReadyMessage) -> bytes:
        return encode_message(message)

    def decode(self, frame: bytes) -> Any:
        return decode_message(frame, trusted=True)

    def plane(self, name: str, folder: str) -> StageControlPlane:
        return StageControlPlane(
            name, f"ipc://{folder}/{name}", f"ipc://{folder}/coordinator", f"ipc://{folder}/aborts"
        )


@codec.register_type
@dataclass
class Pair:
    """Two tensors, as a model's own types hold them."""

    first: torch.Tensor
    second: torch.Tensor
    names: list[str] = field(default_factory=list)


@dataclass
class Result:
    """Seconds; ``must`` and ``aim`` are ratios to the limit or, for a bare case, seconds."""

    case: str
    ours: float
    must: float
    aim: float
    limit: float | None = None
    limit_name: str = "memcpy"
    absolute: bool = False
    also: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.ours / self.limit if self.limit else None

    @property
    def reached(self) -> bool:
        return (self.ours if self.absolute or not self.limit else self.ours / self.limit) <= self.must

    def goal(self, value: float) -> str:
        return show_time(value) if self.absolute else f"{value:g} x"


async def one_way(line: Line, carrier: Ours, nbytes: int) -> dict[str, float]:
    """Medians for one size: our write and one way, with and without touching, and the floors."""
    tensor = torch.ones(nbytes, dtype=torch.uint8)
    payload = carrier.payload("bench", {"tensor": tensor})
    fresh = memcpy_fresh(nbytes)
    wrote: list[float] = []

    async def look() -> float:
        write, whole = await line.pipe(payload)
        wrote.append(write)
        return whole

    async def look_and_touch() -> float:
        return (await line.pipe(payload, TOUCH))[1]

    async def into_fresh() -> float:
        return timed(fresh)

    rounds = rounds_for(nbytes)
    cases = {**copies(tensor), "one way": look, "one way, touched": look_and_touch}
    found = await medians(cases, rounds)
    # Apart from the others: its page faults leave nobody's data in the caches.
    found |= await medians({"fresh": into_fresh}, min(rounds, 20))
    found["write"] = float(np.median(wrote[3:]))
    found["memcpy"] = min(found[name] for name in ("torch copy_", "np.copyto", "memmove"))
    return found


async def between_processes(scaling: dict[int, dict[str, float]]) -> list[Result]:
    carrier = Ours()
    async with line(Ours, carrier) as between:
        for nbytes in SCALING:
            scaling[nbytes] = await one_way(between, carrier, nbytes)
        small = carrier.payload("bench", {"tensor": torch.ones(4 * KIB, dtype=torch.uint8)})

        async def through_pipe() -> float:
            return (await between.pipe(small))[1]

        pipe = await medians({"wake": between.wake, "pipe": through_pipe}, 2000)
        await between.use_plane()

        async def through_plane() -> float:
            return await between.plane(small)

        plane = await medians({"plane": through_plane}, 2000)
        await between.end(small)

    def against_memcpy(case: str, nbytes: int, what: str, must: float, aim: float) -> Result:
        found = scaling[nbytes]
        floor = found["memcpy"] + (found["touch"] if "touched" in what else 0)
        also = {"memcpy": found["memcpy"], "memcpy into fresh memory": found["fresh"]}
        name = "memcpy and touch" if "touched" in what else "memcpy"
        return Result(case, found[what], must, aim, floor, name, also=also)

    results = [against_memcpy("write side, 256 MiB", 256 * MIB, "write", 1.25, 1.05)]
    for size, must, aim in ((256, 1.5, 1.1), (64, 1.5, 1.1), (1, 4, 2)):
        name = f"write to read, two processes, {size} MiB"
        results.append(against_memcpy(f"{name}: view", size * MIB, "one way", must, aim))
        results.append(
            against_memcpy(f"{name}: view, every page read", size * MIB, "one way, touched", must, aim)
        )
    for name, seconds in (("control plane", plane["plane"]), ("a pipe", pipe["pipe"])):
        results.append(
            Result(
                f"4 KiB one way, two processes, data and control over {name}",
                seconds,
                0.12e-3,
                0.04e-3,
                pipe["wake"],
                "200 bytes through a pipe",
                absolute=True,
            )
        )
    return results


async def in_one_process() -> list[Result]:
    """Packing and unpacking, where both ends can be in one process."""
    carrier = Ours()
    tensors = [torch.ones(TENSOR_BYTES, dtype=torch.uint8) for _ in range(TENSORS)]
    arrays = [tensor.numpy() for tensor in tensors]
    flat = np.ones(TENSORS * TENSOR_BYTES, np.uint8)
    parts = [flat[i * TENSOR_BYTES :][:TENSOR_BYTES] for i in range(TENSORS)]
    buffer = bytearray(TENSORS * TENSOR_BYTES)

    def copy_all() -> None:
        for part, array in zip(parts, arrays, strict=True):
            np.copyto(part, array)

    def view_all() -> list[torch.Tensor]:
        return [
            torch.frombuffer(buffer, dtype=torch.uint8, count=TENSOR_BYTES, offset=i * TENSOR_BYTES)
            for i in range(TENSORS)
        ]

    announced: dict[str, DataReadyMessage] = {}

    def pack(name: str, payload: StagePayload) -> Callable[[], Any]:
        async def case() -> float:
            loop = asyncio.get_running_loop()
            began = loop.time()
            announced[name] = await carrier.write(payload)
            return loop.time() - began

        return case

    def unpack(name: str) -> Callable[[], Any]:
        async def case() -> float:
            loop = asyncio.get_running_loop()
            message = announced[name]
            began = loop.time()
            payload = await relay_io.read_payload(
                carrier.relay, message.request_id, message.shm_metadata or {}
            )
            seconds = loop.time() - began
            del payload
            return seconds

        return case

    async def copied() -> float:
        return timed(copy_all)

    async def viewed() -> float:
        return timed(view_all)

    cases: dict[str, Any] = {"memcpy": copied, "views": viewed}
    for name, data in shapes(tensors, Pair).items():
        cases[f"pack {name}"] = pack(name, carrier.payload("bench", data))
        cases[f"unpack {name}"] = unpack(name)
    found = await medians(cases, 100)
    many = f"{TENSORS} x {TENSOR_BYTES // KIB} KiB in "
    results = [
        Result(f"{many}{name}: pack and put", found[f"pack {name}"], 2, 1.3, found["memcpy"])
        for name in ("dicts and lists", "dataclasses")
    ]
    results += [
        Result(
            f"unpack {TENSORS} tensors from {name}",
            found[f"unpack {name}"],
            0.9e-3,
            0.3e-3,
            found["views"],
            f"{TENSORS} x torch.frombuffer",
            absolute=True,
        )
        for name in ("dicts and lists", "dataclasses")
    ]
    return results


def credit() -> Result:
    """The ledger has no Python interface of its own: the smallest put that takes a credit, taken back."""
    arena = ShmArena(64 * MIB)
    source = np.ones(64, np.uint8)
    address, times = source.ctypes.data, 1000

    def take_and_return() -> None:
        for _ in range(times):
            arena.put_raw("reader", "bench", address, 64, 60.0)
            arena.revoke("bench")

    seconds = float(np.median([timed(take_and_return) for _ in range(30)])) / times
    return Result(
        "take and return a credit from Python (put 64 bytes, revoke)", seconds, 1e-6, 0.3e-6, absolute=True
    )


def peer() -> dict[str, Any]:
    """What the peer needs for the same cases, or nothing where its environment is not built."""
    if not PEER.exists():
        return {}
    script = Path(__file__).with_name("peer_data_plane.py")
    # A PYTHONPATH of ours would put our package of the same name before the peer's.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([PEER, script], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"the peer's benchmark failed; its last words:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(results: list[Result], others: dict[str, Any]) -> str:
    headings = ["case", "limit", "ours", "ratio", "must reach", "aim for", "reached", "peer"]
    rows = []
    for result in results:
        limit = f"{result.limit_name} {show_time(result.limit)}" if result.limit else "-"
        theirs = others.get("cases", {}).get(result.case)
        rows.append(
            [
                result.case,
                limit,
                show_time(result.ours),
                f"{result.ratio:.2f} x" if result.ratio else "-",
                result.goal(result.must),
                result.goal(result.aim),
                "yes" if result.reached else "no",
                show_time(theirs) if theirs else "-",
            ]
        )
    return table(headings, rows)


async def main() -> None:
    one_thread()
    scaling: dict[int, dict[str, float]] = {}
    results = [*await between_processes(scaling), *await in_one_process(), credit()]
    others = peer()
    print(report(results, others))
    cases = [{**asdict(result), "ratio": result.ratio, "reached": result.reached} for result in results]
    write_results("data_plane", {"cases": cases, "scaling": scaling, "peer": others})


if __name__ == "__main__":
    asyncio.run(main())
