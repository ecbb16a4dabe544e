"""The peer's data plane on the work of ``data_plane.py``, by its public functions.

Runs in the environment that `make bench-peers` builds, under the names of ``data_plane.py``'s cases;
prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang_omni.comm import DataRef, TransportKind, stage_io
from two_processes import KIB, MIB, SCALING, TOUCH, Line, line, medians, one_thread, rounds_for, shapes

from sglang_omni.pipeline.control_plane import StageControlPlane, deserialize_message, serialize_message
from sglang_omni.proto import DataReadyMessage, OmniRequest, StagePayload
from sglang_omni.relay.shm import ShmRelay

TENSORS, TENSOR_BYTES = 200, 64 * KIB


class Peer:
    """Its shm relay, its payload functions and its control plane, in the order its engine calls them."""

    def __init__(self) -> None:
        self.relay = ShmRelay("bench")
        self._put: Any = None

    def payload(self, request_id: str, tensors: Any) -> StagePayload:
        return StagePayload(request_id, OmniRequest(""), tensors)

    async def write(self, payload: StagePayload) -> DataReadyMessage:
        reference, self._put = await stage_io.write_payload(
            self.relay,
            payload.request_id,
            payload,
            transport=TransportKind.SHM,
            from_stage="writer",
            to_stage="reader",
        )
        return DataReadyMessage(payload.request_id, "writer", "reader", reference.to_dict())

    async def read_all(self, message: Any) -> StagePayload:
        reference = DataRef.from_dict(message.data_ref)
        return await stage_io.read_payload(self.relay, message.request_id, reference)

    async def read(self, message: Any) -> torch.Tensor:
        return (await self.read_all(message)).data["tensor"]

    async def settle(self) -> None:
        # Its acknowledgement, without the message that carries it.
        self._put.mark_receiver_done()
        await self._put.wait_for_completion()

    def encode(self, message: DataReadyMessage) -> bytes:
        return serialize_message(message)

    def decode(self, frame: bytes) -> Any:
        return deserialize_message(frame)

    def plane(self, name: str, folder: str) -> StageControlPlane:
        return StageControlPlane(
            name, f"ipc://{folder}/{name}", f"ipc://{folder}/coordinator", f"ipc://{folder}/aborts"
        )


@dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor
    names: list[str] = field(default_factory=list)


async def one_way(between: Line, carrier: Peer, nbytes: int) -> dict[str, float]:
    payload = carrier.payload("bench", {"tensor": torch.ones(nbytes, dtype=torch.uint8)})
    wrote: list[float] = []

    async def look() -> float:
        write, whole = await between.pipe(payload)
        wrote.append(write)
        return whole

    async def look_and_touch() -> float:
        return (await between.pipe(payload, TOUCH))[1]

    cases = {"one way": look, "one way, touched": look_and_touch}
    found = await medians(cases, min(60, rounds_for(nbytes)))
    return {**found, "write": sorted(wrote[3:])[len(wrote[3:]) // 2]}


async def between_processes(scaling: dict[int, dict[str, float]]) -> dict[str, float]:
    carrier = Peer()
    async with line(Peer, carrier) as between:
        for nbytes in SCALING:
            scaling[nbytes] = await one_way(between, carrier, nbytes)
        small = carrier.payload("bench", {"tensor": torch.ones(4 * KIB, dtype=torch.uint8)})

        async def through_pipe() -> float:
            return (await between.pipe(small))[1]

        pipe = await medians({"pipe": through_pipe}, 500)
        await between.use_plane()

        async def through_plane() -> float:
            return await between.plane(small)

        plane = await medians({"plane": through_plane}, 500)
        await between.end(small)
    cases = {"write side, 256 MiB": scaling[256 * MIB]["write"]}
    for size in (256, 64, 1):
        name = f"write to read, two processes, {size} MiB"
        cases[f"{name}: view"] = scaling[size * MIB]["one way"]
        cases[f"{name}: view, every page read"] = scaling[size * MIB]["one way, touched"]
    name = "4 KiB one way, two processes, data and control over"
    return {**cases, f"{name} control plane": plane["plane"], f"{name} a pipe": pipe["pipe"]}


async def in_one_process() -> dict[str, float]:
    carrier = Peer()
    tensors = [torch.ones(TENSOR_BYTES, dtype=torch.uint8) for _ in range(TENSORS)]
    cases: dict[str, float] = {}
    for name, data in shapes(tensors, Pair).items():
        payload = carrier.payload("bench", data)
        unpacked: list[float] = []

        async def pack() -> float:
            began = time.monotonic()
            message = await carrier.write(payload)  # noqa: B023 - used within this round
            packed = time.monotonic()
            await carrier.read_all(message)
            unpacked.append(time.monotonic() - packed)  # noqa: B023
            await carrier.settle()
            return packed - began

        cases[f"{TENSORS} x {TENSOR_BYTES // KIB} KiB in {name}: pack and put"] = (
            await medians({"pack": pack}, 50)
        )["pack"]
        cases[f"unpack {TENSORS} tensors from {name}"] = sorted(unpacked)[len(unpacked) // 2]
    return cases


async def main() -> None:
    one_thread()
    scaling: dict[int, dict[str, float]] = {}
    cases = {**await between_processes(scaling), **await in_one_process()}
    print(json.dumps({"cases": cases, "scaling": scaling}))


if __name__ == "__main__":
    asyncio.run(main())
