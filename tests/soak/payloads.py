"""Soak: payloads of random structure and size from one process to another.

    python tests/soak/payloads.py        SOAK_PAYLOADS=100000 for a shorter run, SOAK_SEED=7 for another one

Every payload must arrive equal to the last bit, every byte of credit must come back, and once warm neither
process may grow: resident memory, memory files and descriptors are looked at all along.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
import multiprocessing
import os
import random
import socket
import time
from typing import Any

import numpy as np
import torch
from traces import Traces, megabytes, read_frame, tidy, traces_of, write_frame

from sglang_omni.pipeline import relay_io
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.relay.shm.relay import ShmRelay

PAYLOADS = int(os.environ.get("SOAK_PAYLOADS", 1_000_000))
SEED = int(os.environ.get("SOAK_SEED", 1))
# Growth beyond this after the warm-up is a leak: a million payloads of ten bytes each would be one.
GROWTH = 6 << 20
# Seconds all of it may take: several times what a payload needs on a busy machine.
PATIENCE = 300 + PAYLOADS * 0.005
SLOT_MB, CREDITS = 4, 2
LIMIT = (SLOT_MB << 20) * CREDITS
POOL = np.random.default_rng(0).integers(0, 256, 20 << 20, dtype=np.uint8)
TORCH_POOL = torch.from_numpy(POOL)
DTYPES = [
    *(torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]
NP_DTYPES = [np.dtype(name) for name in ("u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8")]

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Box:
    content: Any
    label: str = ""


class Generator:
    """The payloads of a seed: both processes make the same ones."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(SEED << 32 | number)
        self._made: list[Any] = []

    def payload(self, number: int) -> StagePayload:
        depth = self._random.choice((1, 1, 2, 2, 3, 4))
        data = self._value(depth)
        return StagePayload(f"request {number}", OmniRequest(self._leaf(), {"n": number}), data)

    def _value(self, depth: int) -> Any:
        draw = self._random
        if depth == 0:
            return self._leaf()
        count = draw.choice((0, 1, 1, 2, 3, 5))
        values = [self._value(depth - 1) for _ in range(count)]
        match draw.randrange(6):
            case 0:
                return values
            case 1:
                return tuple(values)
            case 2:
                return {draw.choice((f"key.{i}", i, (i, "x"), str(i))): v for i, v in enumerate(values)}
            case 3:
                return Box(values, "é" * count)
            case 4:
                return Pair(values, self._leaf())
            case _:
                return {"nested": StagePayload("inner", OmniRequest(None), values)}

    def _leaf(self) -> Any:
        draw = self._random
        kind = draw.randrange(12)
        if kind < 4:
            made: Any = self._tensor()
        elif kind < 6:
            made = self._array()
        elif kind == 6 and self._made:
            return draw.choice(self._made)  # the same object a second time
        else:
            scalars = (None, True, draw.getrandbits(70), -1, draw.random(), "text", b"\0bytes", {1, 2})
            return draw.choice(scalars)
        self._made.append(made)
        return made

    def _nbytes(self) -> int:
        """From nothing to a megabyte, small ones mostly; once in a while more than an edge's credit."""
        draw = self._random
        if draw.random() < 2e-5:
            return 12 << 20
        return int(math.exp2(draw.triangular(0, 20, 6)))

    def _bytes(self, itemsize: int) -> tuple[int, int]:
        count = self._nbytes() // itemsize
        start = self._random.randrange((len(POOL) - count * itemsize) // 64) * 64
        return start, count

    def _tensor(self) -> torch.Tensor:
        draw = self._random
        dtype = draw.choice(DTYPES)
        start, count = self._bytes(dtype.itemsize)
        raw = TORCH_POOL[start : start + count * dtype.itemsize]
        flat = (raw & 1).view(dtype) if dtype is torch.bool else raw.view(dtype)
        match draw.randrange(6):
            case 0 if count >= 4:
                return flat[: count // 4 * 4].view(4, -1).t()
            case 1:
                return flat[::3]
            case 2 if count:
                return flat[0]
            case 3 if count:
                return flat[:1].expand(3, 2, 1)
            case 4:
                return flat.reshape(1, count, 1)
            case _:
                return flat

    def _array(self) -> np.ndarray[Any, Any]:
        draw = self._random
        dtype = draw.choice(NP_DTYPES)
        start, count = self._bytes(dtype.itemsize)
        flat = POOL[start : start + count * dtype.itemsize].view(dtype)
        return draw.choice((flat, flat[::-1], flat[::2], flat.reshape(count, 1)))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # A lone element counts as contiguous whatever its stride, which view() then refuses.
    dense = tensor.contiguous() if tensor.numel() > 1 else tensor.clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8)


def difference(sent: Any, got: Any, path: str = "payload") -> str | None:
    """Where two payloads differ in type, structure or a single bit; None where they do not."""
    if type(sent) is not type(got):
        return f"{path}: {type(sent).__name__} became {type(got).__name__}"
    if isinstance(sent, torch.Tensor):
        if (sent.dtype, sent.shape) != (got.dtype, got.shape):
            return f"{path}: {sent.dtype}{tuple(sent.shape)} became {got.dtype}{tuple(got.shape)}"
        return None if torch.equal(as_bytes(sent), as_bytes(got)) else f"{path}: other bytes"
    if isinstance(sent, np.ndarray):
        if (sent.dtype, sent.shape) != (got.dtype, got.shape):
            return f"{path}: {sent.dtype}{sent.shape} became {got.dtype}{got.shape}"
        return None if sent.tobytes() == got.tobytes() else f"{path}: other bytes"
    if dataclasses.is_dataclass(sent):
        sent, got = vars(sent), vars(got)
    if isinstance(sent, dict):
        if list(sent) != list(got):
            return f"{path}: keys {list(sent)} became {list(got)}"
        pairs: Any = ((key, value, got[key]) for key, value in sent.items())
    elif isinstance(sent, list | tuple):
        if len(sent) != len(got):
            return f"{path}: {len(sent)} became {len(got)} elements"
        pairs = ((i, *both) for i, both in enumerate(zip(sent, got, strict=True)))
    else:
        return None if sent == got else f"{path}: {sent!r} became {got!r}"
    return next((found for key, a, b in pairs if (found := difference(a, b, f"{path}[{key!r}]"))), None)


# --- the receiving process -------------------------------------------------------------------


async def receive(connection: socket.socket) -> None:
    """Checks what comes, keeping some of it for a while, and answers questions about this process."""
    reader, writer = await asyncio.open_connection(sock=connection)
    relay = ShmRelay("receiver", slot_size_mb=SLOT_MB, credits=CREDITS)
    kept: collections.deque[Any] = collections.deque()
    draw = random.Random(SEED)
    while (order := await read_frame(reader)) is not None:
        if order == "traces":
            kept.clear()
            got = None
            tidy()
            await write_frame(writer, dataclasses.asdict(traces_of(os.getpid())))
            continue
        number, metadata = order
        got = await relay_io.read_payload(relay, f"request {number}", metadata)
        if found := difference(Generator(number).payload(number), got):
            await write_frame(writer, f"payload {number}: {found}")
            return
        # Some views live on and die later, in another order than they came.
        if draw.random() < 0.1:
            kept.append(got)
            if len(kept) > 8:
                kept.rotate(draw.randrange(8))
                kept.popleft()


def receiver(connection: socket.socket) -> None:
    torch.set_num_threads(1)
    asyncio.run(receive(connection))


# --- the sending process ---------------------------------------------------------------------


async def traces_there(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Traces:
    await write_frame(writer, "traces")
    answer = await asyncio.wait_for(read_frame(reader), 120)
    if not isinstance(answer, dict):
        raise SystemExit(f"FAILED: {answer or 'the receiver is gone'}")
    return Traces(**answer)


async def send(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    relay = ShmRelay("sender", slot_size_mb=SLOT_MB, credits=CREDITS)
    begin, warm, grown = time.monotonic(), None, None
    inline = nbytes = 0
    every = max(PAYLOADS // 50, 1)
    for number in range(PAYLOADS):
        payload = Generator(number).payload(number)
        metadata, _ = await relay_io.write_payload(relay, payload.request_id, payload)
        inline += "inline" in metadata
        nbytes += len(metadata["inline"]) if "inline" in metadata else metadata["nbytes"]
        await write_frame(writer, (number, metadata))
        if (number + 1) % every == 0 or number + 1 == PAYLOADS:
            del payload, metadata
            there = await traces_there(reader, writer)
            tidy()
            here = traces_of(os.getpid())
            if held := relay.arena.outstanding():
                raise SystemExit(f"FAILED: {held} credits are lost after {number + 1} payloads")
            rate = (number + 1) / (time.monotonic() - begin)
            eta = (PAYLOADS - number - 1) / rate
            print(
                f"{number + 1:>8} payloads, {rate:.0f}/s, {inline / (number + 1):.0%} inline, "
                f"{nbytes / 1e9:.2f} GB, ETA {eta:.0f} s | sender {here} | receiver {there}",
                flush=True,
            )
            # The first tenth warms up: pools of allocators, the arena's pages.
            if warm is None and number + 1 >= PAYLOADS // 10:
                warm = here, there
            # The arena has room of each size for as many as were ever under way at once.
            if grown is None and number + 1 >= PAYLOADS // 2:
                grown = here.shared
    assert warm is not None
    assert grown is not None
    problems = []
    for name, first, last in (("sender", warm[0], here), ("receiver", warm[1], there)):
        if last.private > first.private + GROWTH:
            problems.append(
                f"the {name}'s memory grew from {megabytes(first.private)} to {megabytes(last.private)}"
            )
        if last.descriptors > first.descriptors or last.memfds > first.memfds:
            problems.append(f"the {name} has lost descriptors: {first} became {last}")
    if here.shared > grown + LIMIT:
        problems.append(
            f"the arena grew from {megabytes(grown)} to {megabytes(here.shared)} in the second half"
        )
    writer.close()
    if problems:
        raise SystemExit("FAILED: " + "; ".join(problems))
    seconds = time.monotonic() - begin
    print(
        f"{PAYLOADS} payloads ({inline} inline, {nbytes / 1e9:.2f} GB) in {seconds:.0f} s: all equal, "
        f"no credit lost; memory: sender {megabytes(warm[0].private)} -> {megabytes(here.private)}, receiver "
        f"{megabytes(warm[1].private)} -> {megabytes(there.private)}, arena {megabytes(here.shared)}"
    )


def main() -> None:
    torch.set_num_threads(1)
    here, there = socket.socketpair()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=receiver, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        asyncio.run(asyncio.wait_for(send(here), PATIENCE))
    except TimeoutError:
        raise SystemExit(f"FAILED: not done after {PATIENCE:.0f} s") from None
    finally:
        process.join(10)
        process.kill()


if __name__ == "__main__":
    main()
