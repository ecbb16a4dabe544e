"""The peer's data plane on the work of ``data_plane.py``, by its public functions, in its environment."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from measure import KIB, Samples
from peer import answer
from sglang_omni.comm import DataRef, TransportKind, stage_io
from two_processes import LOOK, TENSOR_BYTES, TENSORS, TOUCH, line, one_thread, shapes

from sglang_omni.pipeline.control_plane import StageControlPlane, deserialize_message, serialize_message
from sglang_omni.proto import DataReadyMessage, OmniRequest, StagePayload
from sglang_omni.relay.shm import ShmRelay


class Peer:
    """Its shm relay, its payload functions and its control plane, in the order its engine calls them."""

    def __init__(self) -> None:
        self.relay = ShmRelay("bench")
        self._put: Any = None

    def payload(self, request_id: str, data: Any) -> StagePayload:
        return StagePayload(request_id, OmniRequest(""), data)

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

    async def read(self, message: Any) -> Any:
        reference = DataRef.from_dict(message.data_ref)
        return (await stage_io.read_payload(self.relay, message.request_id, reference)).data

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


async def main() -> None:
    one_thread()
    carrier = Peer()
    tensors = [torch.ones(TENSOR_BYTES, dtype=torch.uint8) for _ in range(TENSORS)]
    many = {name: carrier.payload("bench", data) for name, data in shapes(tensors, Pair).items()}
    small = carrier.payload("bench", {"tensor": torch.ones(4 * KIB, dtype=torch.uint8)})
    one: dict[int, StagePayload] = {}

    async with line(Peer, carrier) as between:

        async def one_way(nbytes: int, count: int, touched: bool) -> Samples:
            if nbytes not in one:
                one.clear()
                one[nbytes] = carrier.payload("bench", {"tensor": torch.ones(nbytes, dtype=torch.uint8)})
            return await between.pipe(one[nbytes], count, TOUCH if touched else LOOK)

        async def pipe(count: int) -> Samples:
            return {"pipe": (await between.pipe(small, count))["one way"]}

        async def use_plane() -> Samples:
            await between.use_plane()
            return {}

        async def control_plane(count: int) -> Samples:
            return await between.plane(small, count)

        async def pack(name: str, count: int) -> Samples:
            samples: Samples = {f"pack {name}": [], f"unpack {name}": []}
            for _ in range(count):
                began = time.monotonic()
                message = await carrier.write(many[name])
                packed = time.monotonic()
                await carrier.read(message)
                samples[f"unpack {name}"].append(time.monotonic() - packed)
                samples[f"pack {name}"].append(packed - began)
                await carrier.settle()
            return samples

        cases = (one_way, pipe, use_plane, control_plane, pack)
        await answer({case.__name__: case for case in cases})
        await between.end(small)


if __name__ == "__main__":
    asyncio.run(main())
