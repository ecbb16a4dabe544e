"""What a payload costs between two processes through each relay, against memcpy in the same run.

    python benches/relays.py

Prints the table of docs/relays.md, and writes benches/results/relays.json. Blocks of the relays' samples and
the copies' take turns. On one host: it says what the engines and we cost, and nothing about a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from typing import Any

import numpy as np
import torch
from data_plane import Ours
from measure import KIB, MIB, RESULTS, Block, Samples, block, conditions, interleaved, progress, show_time
from two_processes import LOOK, Line, line, one_thread

from sglang_omni.relay import create_relay

BACKENDS = ("shm", "nixl", "mooncake", "nccl")
SIZES = (16 * KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB, 256 * MIB)
ROUNDS, SAMPLES = 7, 5


class Through(Ours):
    """A relay of any backend."""

    def __init__(self, backend: str) -> None:
        self.relay = create_relay(backend, engine_id=f"bench-{backend}", slot_size_mb=512, credits=2)


def label(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def one_way(backend: str, line: Line, payload: Any, count: int) -> Block:
    async def run() -> Samples:
        return {backend: (await line.pipe(payload, count, LOOK))["one way"]}

    return run


async def main() -> None:
    one_thread()
    began, medians = conditions(), {}
    async with contextlib.AsyncExitStack() as stack:
        lines: dict[str, Line] = {}
        payloads = {}
        for backend in BACKENDS:
            make = partial(Through, backend)
            carrier = make()
            lines[backend] = await stack.enter_async_context(line(make, carrier))
            payloads[backend] = carrier.payload
        for nbytes in SIZES:
            progress(label(nbytes))
            tensor = torch.ones(nbytes, dtype=torch.uint8)
            source, target = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
            count = SAMPLES if nbytes <= MIB else 1

            blocks = [
                one_way(backend, lines[backend], payloads[backend]("k", {"tensor": tensor}), count)
                for backend in BACKENDS
            ]
            blocks.append(block("memcpy", partial(np.copyto, target, source), count))
            medians[label(nbytes)] = await interleaved(blocks, ROUNDS)
        for backend in BACKENDS:
            await lines[backend].use_plane()
            await lines[backend].end(payloads[backend]("end", {"tensor": torch.ones(1)}))
    names = ("memcpy", *BACKENDS)
    print("| payload | " + " | ".join(names) + " |")
    print("|" + "---|" * (len(names) + 1))
    for nbytes in SIZES:
        cells = [show(nbytes, medians[label(nbytes)][name]) for name in names]
        print(f"| {label(nbytes)} | " + " | ".join(cells) + " |")
    RESULTS.mkdir(exist_ok=True)
    content = {"began": began, "ended": conditions(), "seconds": medians}
    (RESULTS / "relays.json").write_text(json.dumps(content, indent=1) + "\n")


def show(nbytes: int, seconds: float) -> str:
    return f"{show_time(seconds)}, {nbytes / seconds / 1e9:.2g} GB/s"


if __name__ == "__main__":
    asyncio.run(main())
