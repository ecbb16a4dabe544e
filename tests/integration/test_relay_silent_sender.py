"""A sender that does not answer, is out of files, or is dead and has left a forked child, beside others."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import is_mostly_asleep
from waiting import until

from sglang_omni._core import LeaseError, ShmLease
from sglang_omni.pipeline import relay_io
from sglang_omni.proto import codec
from sglang_omni.relay import RelayReadError
from sglang_omni.relay.shm.relay import ShmRelay

# Writes payloads of 4 MB, in the arena, or of 40 MB, in memory of their own, and says where they are.
SENDER = """
import asyncio, os, sys, time
import numpy as np
from sglang_omni.pipeline import relay_io
from sglang_omni.proto import codec
from sglang_omni.relay import create_relay

relay = create_relay("shm", engine_id="sender", slot_size_mb=16, credits=1)

def send(value, size):
    sent = np.full(size, value, np.uint8)
    metadata, _ = asyncio.run(relay_io.write_blob(relay, "k", sent, target=str(value)))
    return codec.pack(metadata).hex()

for line in sys.stdin:
    order, *args = line.split()
    if order == "send":
        print(send(*map(int, args)), flush=True)
    elif order == "fork":
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
"""
ARENA, OWN = 4_000_000, 40_000_000


class Sender:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SENDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, order: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(order, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def send(self, value: int, size: int = ARENA) -> dict[str, Any]:
        return codec.unpack(bytes.fromhex(self._ask(f"send {value} {size}")), trusted=True)

    def fork(self) -> int:
        return int(self._ask("fork"))

    async def stop(self) -> None:
        """Stop all of its threads, which takes a moment after the signal."""
        self.process.send_signal(signal.SIGSTOP)
        stats = list(Path(f"/proc/{self.process.pid}/task").glob("*/stat"))
        await until(lambda: all(stat.read_text().rsplit(")", 1)[1].split()[0] == "T" for stat in stats))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()  # Not read to its end, which a child that it forked puts off.


@pytest.fixture
def start() -> Iterator[Callable[[], Sender]]:
    senders: list[Sender] = []

    def start() -> Sender:
        senders.append(Sender())
        return senders[-1]

    yield start
    for sender in senders:
        sender.close()


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("here", slot_size_mb=16, credits=1)
    yield relay
    relay.close()


async def read(relay: ShmRelay, metadata: dict[str, Any]) -> int:
    return int((await relay_io.read_blob(relay, "k", metadata))[-1])


async def test_a_silent_sender_stops_no_read_of_another(relay: ShmRelay, start: Callable[[], Sender]) -> None:
    known, fresh, silent = start(), start(), start()
    assert await read(relay, known.send(1)) == 1
    more = [known.send(2), known.send(3), fresh.send(4), fresh.send(5)]
    unheard = silent.send(6)
    await silent.stop()
    lost = asyncio.create_task(read(relay, unheard))
    await asyncio.sleep(0)
    # All of this while the first read of the silent one waits, which is cold as that of the fresh one is.
    assert [await read(relay, metadata) for metadata in more] == [2, 3, 4, 5]
    assert not lost.done()
    with pytest.raises(RelayReadError, match="does not answer"):
        await lost
    # Nothing of it is left that would stop it from being read when it goes on.
    silent.process.send_signal(signal.SIGCONT)
    assert await read(relay, silent.send(8)) == 8


async def test_a_sender_that_falls_silent_stops_no_read_of_another_nor_the_loop(
    relay: ShmRelay, start: Callable[[], Sender]
) -> None:
    known, silent = start(), start()
    for sender in (known, silent):
        assert await read(relay, sender.send(1)) == 1
    in_arena, *own = silent.send(2), *(silent.send(value, OWN) for value in range(3, 13))
    more = [known.send(2), known.send(3, OWN)]
    await silent.stop()
    # What needs nothing from it can be read.
    assert await read(relay, in_arena) == 2
    lost = [asyncio.create_task(read(relay, metadata)) for metadata in own]
    await asyncio.sleep(0)
    assert [await read(relay, metadata) for metadata in more] == [2, 3]
    assert not any(task.done() for task in lost)
    silent.process.send_signal(signal.SIGCONT)
    # None of the tickets was spent on waiting.
    assert [await task for task in lost] == list(range(3, 13))


@pytest.mark.long
async def test_an_unanswered_read_can_be_tried_again(relay: ShmRelay, start: Callable[[], Sender]) -> None:
    sender = start()
    assert await read(relay, sender.send(1)) == 1
    own = sender.send(2, OWN)
    await sender.stop()
    with pytest.raises(RelayReadError, match="does not answer"):
        await read(relay, own)
    sender.process.send_signal(signal.SIGCONT)
    assert await read(relay, own) == 2


async def test_the_end_of_a_sender_that_forked_is_noticed_at_once(
    relay: ShmRelay, start: Callable[[], Sender]
) -> None:
    sender = start()
    first, second = sender.send(1), sender.send(2)
    assert await read(relay, first) == 1
    child = sender.fork()
    arena = _arenas(sender.process.pid)
    try:
        assert arena & _arenas(os.getpid())
        sender.close()
        await until(lambda: not arena & _arenas(os.getpid()))
        with pytest.raises(RelayReadError, match="is it gone") as lost:
            await read(relay, second)
        # An answer was not waited for.
        assert "does not answer" not in str(lost.value)
    finally:
        os.kill(child, signal.SIGKILL)


def _arenas(pid: int) -> set[str]:
    """The inodes of the arenas that the process ``pid`` has mapped: its own, and others that it reads."""
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[4] for line in maps if "memfd:sglang-omni" in line}


@pytest.mark.long
async def test_more_first_reads_than_it_can_take_end_with_an_error(start: Callable[[], Sender]) -> None:
    """The queue of connections of a silent sender is full: a connection must not wait for ever."""
    sender = start()
    metadata = sender.send(1)
    name, place = metadata["relay_info"]["arena"], metadata["relay_info"]["place"]
    await sender.stop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    queued: list[socket.socket] = []
    try:
        while True:
            queued.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            queued[-1].setblocking(False)
            try:
                queued[-1].connect(f"\0{name}")
            except BlockingIOError:
                break
        # The second waits for the first, and then as long itself.
        reads = [asyncio.to_thread(ShmLease, name, tuple(place)) for _ in range(2)]
        async with asyncio.timeout(60):
            errors = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(error, LeaseError) and "does not answer" in str(error) for error in errors)
    finally:
        for connection in queued:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


OUT_OF_FILES = """
import os, resource
from sglang_omni._core import ShmArena

arena = ShmArena(1 << 20)
place, _ = arena.put_raw("edge", "key", b"x" * 1000, 60.0)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
print(arena.name, *place, flush=True)
input()  # a reader has connected
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
input()
"""


def test_a_sender_out_of_files_is_not_kept_busy_and_serves_the_reader_when_it_can() -> None:
    sender = subprocess.Popen(
        [sys.executable, "-c", OUT_OF_FILES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        name, *place = sender.stdout.readline().split()
        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(f"\0{name}")
            assert is_mostly_asleep(sender.pid)
            sender.stdin.write("\n")
            sender.stdin.flush()
            lease = ShmLease(name, tuple(map(int, place)))
        assert bytes(lease) == b"x" * 1000
        del lease
        sender.communicate("\n", timeout=120)
