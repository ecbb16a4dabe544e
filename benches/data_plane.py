"""What a payload costs between two processes, against memcpy in the same run, and beside the peer.

    python benches/data_plane.py

Writes benches/results/data_plane.json, which ``report.py`` and ``plot.py`` read. Blocks of our samples,
the copies' and the peer's take turns; the peer takes part where `make bench-peers` has installed it.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from measure import (
    KIB,
    MIB,
    Block,
    Result,
    Samples,
    block,
    conditions,
    interleaved,
    memcpy_fresh,
    progress,
    timed,
    write_results,
)
from peer import Peer
from two_processes import TENSOR_BYTES, TENSORS, TOUCH, Line, line, one_thread, shapes, touch

from sglang_omni._core import CreditLedger
from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.transport.control_plane import StageControlPlane, decode_message, encode_message
from sglang_omni.proto import DataReadyMessage, OmniRequest, StagePayload, codec
from sglang_omni.relay import create_relay

# Payload sizes of the scaling plot.
SCALING = [KIB << (2 * step) for step in range(11)]


class Ours:
    """The shm relay with relay_io, and the stages' control plane."""

    def __init__(self) -> None:
        # A reader keeps views while at most half of the room is taken: enough for 1 GiB and its header.
        self.relay = create_relay("shm", engine_id="bench", slot_size_mb=2048, credits=2)

    def payload(self, request_id: str, data: Any) -> StagePayload:
        return StagePayload(request_id, OmniRequest(""), data)

    async def write(self, payload: StagePayload) -> DataReadyMessage:
        metadata, _ = await relay_io.write_payload(self.relay, payload.request_id, payload, target="reader")
        return DataReadyMessage(payload.request_id, "writer", "reader", metadata)

    async def read(self, message: Any) -> Any:
        payload = await relay_io.read_payload(self.relay, message.request_id, message.shm_metadata)
        return payload.data

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


# --- two processes ---------------------------------------------------------------------------


def copies(source: torch.Tensor, count: int) -> list[Block]:
    """The floors: a tensor copied into warm memory by each who might be quickest, and a look at every page.

    numpy asks for huge pages for the target, so the quickest is the fastest copy one thread has here.
    """
    array, into = source.numpy(), np.ones(source.nbytes, np.uint8)
    target = torch.from_numpy(into)
    return [
        block("torch copy_", lambda: target.copy_(source), count),
        block("np.copyto", lambda: np.copyto(into, array), count),
        block("memmove", lambda: ctypes.memmove(into.ctypes.data, array.ctypes.data, array.nbytes), count),
        block("touch", lambda: touch(target), count),
    ]


def effort(nbytes: int) -> tuple[int, int]:
    """Rounds, and samples of each block in a round: a few seconds for any size."""
    return max(5, min(15, (2 << 30) // nbytes)), max(
        1, min(20, (512 << 20) // nbytes, (8 << 20) // nbytes + 3)
    )


async def one_way(between: Line, peer: Peer, carrier: Ours, nbytes: int) -> dict[str, float]:
    """Medians for one size, with and without reading every page, and the floors."""
    tensor = torch.ones(nbytes, dtype=torch.uint8)
    payload = carrier.payload("bench", {"tensor": tensor})
    rounds, count = effort(nbytes)

    async def look() -> Samples:
        return await between.pipe(payload, count)

    async def look_and_touch() -> Samples:
        return {"touched": (await between.pipe(payload, count, TOUCH))["one way"]}

    blocks = [*copies(tensor, count), look, peer.block("one_way", nbytes, count, False)]
    if nbytes == 256 * MIB:
        blocks.append(look_and_touch)
    found = await interleaved(blocks, rounds)
    if nbytes == 256 * MIB:
        theirs = await interleaved([peer.block("one_way", nbytes, count, True)], rounds)
        found |= {"peer touched": theirs["peer one way"]} if theirs else {}
    # Apart from the others: its page faults leave nobody's data in the caches.
    found |= await interleaved([block("fresh", memcpy_fresh(nbytes), count)], rounds)
    found["memcpy"] = min(found[name] for name in ("torch copy_", "np.copyto", "memmove"))
    return found


async def small_payload(between: Line, peer: Peer, carrier: Ours) -> dict[str, float]:
    """4 KiB: over a pipe, and over the control plane. After this the line is of no use for pipes."""
    payload = carrier.payload("bench", {"tensor": torch.ones(4 * KIB, dtype=torch.uint8)})

    async def pipe() -> Samples:
        return {"pipe": (await between.pipe(payload, 50))["one way"]}

    found = await interleaved([lambda: between.wake(50), pipe, peer.block("pipe", 50)], 20)
    await between.use_plane()
    await peer.block("use_plane")()
    found |= await interleaved([lambda: between.plane(payload, 50), peer.block("control_plane", 50)], 40)
    await between.end(payload)
    return found


def two_process_results(scaling: dict[int, dict[str, float]], small: dict[str, float]) -> list[Result]:
    def row(case: str, nbytes: int, what: str, must: float | None, aim: float | None) -> Result:
        found = scaling[nbytes]
        return Result(
            case,
            found[what],
            "x",
            must,
            aim,
            found["memcpy"] + (found["touch"] if what == "touched" else 0),
            "memcpy and a look at each page" if what == "touched" else "memcpy",
            found["fresh"],
            found.get(f"peer {what}"),
        )

    big = 256 * MIB
    results = [
        row("write side, 1 x 256 MiB, pack and put", big, "write", 1.25, 1.05),
        row("write to read, two processes, 256 MiB", big, "one way", 1.5, 1.1),
        row("the same, and every page read", big, "touched", 1.5, 1.1),
    ]
    # The rows without goals stand beside those that the targets name.
    results += [
        row("write to read, 64 MiB, relay only", 64 * MIB, "relay", 1.5, 1.1),
        row("the same with message and wake-up, 64 MiB", 64 * MIB, "one way", 1.5, 1.1),
        row("write to read, 1 MiB, relay only", MIB, "relay", 4, 2),
        row("the same with message and wake-up, 1 MiB", MIB, "one way", None, None),
    ]
    wake = "200 bytes through a pipe"
    control, pipe = small["control plane"], small["pipe"]
    by_control, by_pipe = small.get("peer control plane"), small.get("peer pipe")
    case = "4 KiB one way, two processes, data and control"
    results += [
        Result(case, control, "s", 0.12e-3, 0.04e-3, small["wake"], wake, peer=by_control),
        Result(
            "the same, the message through a pipe", pipe, "s", None, None, small["wake"], wake, peer=by_pipe
        ),
    ]
    return results


# --- one process -----------------------------------------------------------------------------


async def many_tensors(peer: Peer) -> list[Result]:
    """Packing and unpacking 200 tensors, where both ends can be in one process."""
    carrier = Ours()
    tensors = [torch.ones(TENSOR_BYTES, dtype=torch.uint8) for _ in range(TENSORS)]
    arrays = [tensor.numpy() for tensor in tensors]
    buffer = bytearray(TENSORS * TENSOR_BYTES)

    def copy_into(flat: Any) -> Callable[[], None]:
        parts = [flat[i * TENSOR_BYTES :][:TENSOR_BYTES] for i in range(TENSORS)]

        def copy() -> None:
            for part, array in zip(parts, arrays, strict=True):
                np.copyto(part, array)

        return copy

    def view_all() -> list[torch.Tensor]:
        return [
            torch.frombuffer(buffer, dtype=torch.uint8, count=TENSOR_BYTES, offset=i * TENSOR_BYTES)
            for i in range(TENSORS)
        ]

    def ours(name: str, payload: StagePayload) -> Block:
        async def run() -> Samples:
            samples: Samples = {f"pack {name}": [], f"unpack {name}": []}
            loop = asyncio.get_running_loop()
            for _ in range(5):
                began = loop.time()
                message = await carrier.write(payload)
                packed = loop.time()
                data = await carrier.read(message)
                samples[f"unpack {name}"].append(loop.time() - packed)
                samples[f"pack {name}"].append(packed - began)
                del data
            return samples

        return run

    many = shapes(tensors, Pair)
    blocks = [block("memcpy", copy_into(np.ones(len(buffer), np.uint8)), 5), block("views", view_all, 5)]
    for name, data in many.items():
        blocks += [ours(name, carrier.payload("bench", data)), peer.block("pack", name, 5)]
    found = await interleaved(blocks, 25)
    found |= await interleaved([block("fresh", memcpy_fresh(len(buffer)), 5)], 10)
    results = []
    for name in many:
        case = f"{TENSORS} x {TENSOR_BYTES // KIB} KiB in {name}: pack"
        peers = found.get(f"peer pack {name}")
        floor, fresh = found["memcpy"], found["fresh"]
        results.append(Result(case, found[f"pack {name}"], "x", 2, 1.3, floor, fresh=fresh, peer=peers))
    for name in many:
        case, peers = f"unpack {TENSORS} tensors from {name}", found.get(f"peer unpack {name}")
        limit = f"{TENSORS} x torch.frombuffer"
        results.append(
            Result(case, found[f"unpack {name}"], "s", 0.9e-3, 0.3e-3, found["views"], limit, peer=peers)
        )
    return results


def credit() -> Result:
    """A credit of one edge of the ledger that the relay's arena counts with."""
    ledger, times = CreditLedger(64 * MIB), 10_000

    def take_and_return() -> None:
        for _ in range(times):
            ledger.take("reader", 4096)
            ledger.give_back("reader", 4096)

    seconds = float(np.median([timed(take_and_return) for _ in range(30)])) / times
    return Result("take and return a credit, from Python", seconds, "s", 1e-6, 0.3e-6)


async def main() -> None:
    one_thread()
    began = conditions()
    async with Peer("peer_data_plane.py") as peer:
        carrier = Ours()
        scaling: dict[int, dict[str, float]] = {}
        async with line(Ours, carrier) as between:
            for nbytes in SCALING:
                scaling[nbytes] = await one_way(between, peer, carrier, nbytes)
                progress(f"one way, {nbytes // KIB} KiB: {scaling[nbytes]['one way'] * 1e3:.3f} ms")
            small = await small_payload(between, peer, carrier)
        results = two_process_results(scaling, small)
        results += [*await many_tensors(peer), credit()]
    path = write_results("data_plane", began, results, scaling=scaling)
    progress(f"wrote {path}")


if __name__ == "__main__":
    asyncio.run(main())
