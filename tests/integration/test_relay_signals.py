"""A signal that comes while a reader asks its sender for memory loses nothing."""

from __future__ import annotations

import subprocess
import sys

# A payload over the relay's credit lies in memory of its own, for which the reader has to ask.
READER = """
import asyncio, gc, signal, sys
import numpy as np
from sglang_omni.pipeline import relay_io
from sglang_omni.relay import create_relay

relay = create_relay("shm", engine_id="here", slot_size_mb=1, credits=1)
ticks = 0

def tick(number, frame):
    global ticks
    ticks += 1

signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 3e-4, 3e-4)

async def main():
    lost = []
    sent = np.arange(1_200_000, dtype=np.uint8)
    for number in range(1500):
        metadata, _ = await relay_io.write_blob(relay, "k", sent)
        try:
            read = await relay_io.read_blob(relay, "k", metadata)
        except Exception as error:
            lost.append(f"{number}: {error}")
        else:
            assert read[-1] == sent[-1]
            del read
    return lost

lost = asyncio.run(main())
signal.setitimer(signal.ITIMER_REAL, 0)
assert ticks > 300, ticks
print(len(lost), *lost[:2])
"""


def test_signals_lose_no_payload() -> None:
    done = subprocess.run([sys.executable, "-c", READER], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
