"""The debug switch that catches who writes to a received payload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

WRITER = """
import asyncio, sys
import numpy as np
from sglang_omni.pipeline import relay_io
from sglang_omni.relay import create_relay

async def main():
    relay = create_relay("shm", engine_id="here", slot_size_mb=1, credits=1)
    metadata, _ = await relay_io.write_blob(relay, "k", np.full(int(sys.argv[1]), 7, np.uint8))
    # As crowded memory would be copied, and a copy may be written.
    metadata["relay_info"]["lend"] = True
    view = await relay_io.read_blob(relay, "k", metadata)
    print("read", view[-1], flush=True)
    view[-1] = 8
    print("written", view[-1], flush=True)
    del view
    print("outstanding", relay.arena.outstanding(), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("size", [100_000, 3_000_000], ids=["in the arena", "in memory of its own"])
@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_write_to_a_received_payload_crashes_only_with_the_switch(switch: str, size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", WRITER, str(size)],
        env={**os.environ, "SGLANG_OMNI_RELAY_READ_ONLY": switch},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if switch == "1":
        assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "read 7\n")
        line = WRITER[: WRITER.index("view[-1] = 8")].count("\n") + 1
        assert f'File "<string>", line {line} in main' in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "read 7\nwritten 8\noutstanding 0\n"), done.stderr
