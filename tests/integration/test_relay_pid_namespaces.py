"""Two pid namespaces on one network, as containers of one pod: neither has numbers for the other's."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.relay.shm.relay import ShmRelay

_UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]


def _is_possible() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*_UNSHARE, "true"], capture_output=True).returncode == 0
    )


pytestmark = pytest.mark.skipif(not _is_possible(), reason="needs the right to make a pid namespace")

# Reads what it is sent by line, computes in place and says the sum; then sends a payload itself and waits.
_OTHER = """
import asyncio, json, os, sys
import numpy as np
from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.relay.shm import ShmRelay

async def main():
    relay = ShmRelay("other", slot_size_mb=4, credits=1)
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        read = await read_blob(relay, "k", json.loads(line))
        read += 1
        print(int(read.sum()), flush=True)
        if sys.argv[1] == "keep":
            continue
        del read
        metadata, _ = await write_blob(relay, "k", np.full(200_000, 3, np.int32))
        print(json.dumps(metadata), flush=True)
    while relay.arena.outstanding():
        await asyncio.sleep(0.01)
    relay.close()

asyncio.run(main())
"""


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("this", slot_size_mb=4, credits=1)
    yield relay
    relay.close()


@contextmanager
def _other(views: str) -> Iterator[subprocess.Popen[str]]:
    command = [*_UNSHARE, sys.executable, "-c", _OTHER, views]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


async def test_payloads_go_both_ways_and_room_returns(relay: ShmRelay) -> None:
    with _other("return") as other:
        assert _line(other) == "1\n", "not in a namespace of its own"
        assert other.stdin is not None
        for value in (1, 5):
            fan_out = FanOut(relay, np.full(200_000, value, np.int32))
            metadata, theirs = await fan_out.write("k", "other")
            mine, _ = await fan_out.write("k", "here")
            print(json.dumps(metadata), file=other.stdin, flush=True)
            assert int(_line(other)) == (value + 1) * 200_000
            assert int((await read_blob(relay, "k", mine)).sum()) == value * 200_000
            await theirs.wait_for_completion()
            del fan_out
            assert int((await read_blob(relay, "k", json.loads(_line(other)))).sum()) == 3 * 200_000
        assert relay.arena.outstanding() == 0
        other.stdin.close()
        assert other.wait(20) == 0


async def test_room_of_a_killed_reader_returns(relay: ShmRelay) -> None:
    with _other("keep") as other:
        assert _line(other) == "1\n", "not in a namespace of its own"
        assert other.stdin is not None
        metadata, _ = await write_blob(relay, "k", np.full(200_000, 1, np.int32))
        print(json.dumps(metadata), file=other.stdin, flush=True)
        assert int(_line(other)) == 400_000
        assert relay.arena.outstanding() == 1
    async with asyncio.timeout(20):
        while relay.arena.outstanding():
            await asyncio.sleep(0.01)
