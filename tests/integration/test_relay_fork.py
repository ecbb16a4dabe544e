"""The shm relay in programs that fork, get signals, or write to what they received."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def says(script: str) -> str:
    """What a script prints that must end well, and say nothing of errors."""
    done = ran("-W", "ignore::DeprecationWarning", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


PARENT = """
import asyncio, gc, os, sys
import numpy as np
from sglang_omni.pipeline import relay_io
from sglang_omni.relay import create_relay

relay = create_relay("shm", engine_id="here", slot_size_mb=4, credits=1)

def send(value):
    return asyncio.run(relay_io.write_blob(relay, "k", np.full(100_000, value, np.uint8)))

def receive(metadata):
    return asyncio.run(relay_io.read_blob(relay, "k", metadata))

first, put = send(1)
view = receive(first)
unread, unread_put = send(2)

child = os.fork()
if child == 0:
    END_CHILD
_, status = os.waitpid(child, 0)
assert status == 0, status

assert not put.is_returned
send(3)
assert (view == 1).all()
# Another child, which has to ask for the arena, finds that it is still served.
other = os.fork()
if other == 0:
    assert (receive(unread) == 2).all()
    os._exit(0)
_, status = os.waitpid(other, 0)
assert status == 0, status

del view
gc.collect()
assert put.is_returned
print("fine")
"""

CHILDREN = {
    # The view's last reference in the child; then all that the interpreter still has.
    "drops a view": "del view; os._exit(0)",
    "ends as an interpreter does": "sys.exit(0)",
    "closes the relay": "relay.close(); del relay, put, unread_put; gc.collect(); os._exit(0)",
    "sends and receives by itself": """
    own, own_put = send(4)
    assert (receive(own) == 4).all() and own_put.is_returned
    assert (view == 1).all()
    sys.exit(0)""",
}


@pytest.mark.parametrize("end", CHILDREN)
def test_a_forked_child_takes_nothing_from_its_parent(end: str) -> None:
    script = PARENT.replace("END_CHILD", CHILDREN[end])
    assert says(script) == "fine\n"


BUSY = """
import os, signal, threading, time
import numpy as np
from sglang_omni._core import ShmArena, ShmLease
from sglang_omni.proto import codec

plan = codec.plan(np.arange(100))
arena = ShmArena(1 << 20)
stop = threading.Event()

def read():
    # Looked up, and looked for in vain: either has the lock for a moment.
    while not stop.is_set():
        place, _ = arena.put("e", "k", plan, 60.0)
        assert bytes(ShmLease(arena.name, place)) == plan.to_bytes()
        try:
            ShmLease("sglang-omni-no-one", place)
        except Exception:
            pass

reading = [threading.Thread(target=read) for _ in range(3)]
for thread in reading:
    thread.start()
hung = 0
for _ in range(120):
    child = os.fork()
    if child == 0:
        own = ShmArena(1 << 20)
        place, _ = own.put("e", "k", plan, 60.0)
        os._exit(0 if bytes(ShmLease(own.name, place)) == plan.to_bytes() else 1)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            hung += 1
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.0005)
    if hung > 1:
        break
stop.set()
for thread in reading:
    thread.join()
print("hung:", hung)
"""

# A reader and its own sender in one process; the child looks at what it has of their connections.
LEFT = """
import os, sys
import numpy as np
from sglang_omni._core import ShmArena, ShmLease
from sglang_omni.proto import codec

plan = codec.plan(np.arange(100))

def sockets():
    targets = [(fd, os.readlink(f"/proc/self/fd/{fd}")) for fd in os.listdir("/proc/self/fd")
               if os.path.exists(f"/proc/self/fd/{fd}")]
    return [target for _, target in targets if target.startswith("socket:")]

before = sockets()
arena = ShmArena(1 << 20)
place, _ = arena.put("e", "k", plan, 60.0)
lease = ShmLease(arena.name, place)
assert len(sockets()) == len(before) + 3, sockets()
child = os.fork()
if child == 0:
    # What listens, and both ends of the connection, are the parent's; the view is here as well.
    assert sockets() == before, sockets()
    opened = os.open("/dev/null", os.O_RDONLY)
    assert bytes(lease) == plan.to_bytes()
    del lease, arena
    os.fstat(opened)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert bytes(lease) == plan.to_bytes()
print("fine")
"""


def test_no_child_waits_for_a_lock_of_its_parents_threads() -> None:
    assert says(BUSY) == "hung: 0\n"


def test_a_child_has_none_of_its_parents_connections() -> None:
    assert says(LEFT) == "fine\n"


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
    for number in range(1000):
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
assert ticks > 200, ticks
print(len(lost), *lost[:2])
"""


def test_signals_lose_no_payload() -> None:
    assert says(READER) == "0\n"


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
    done = ran("-X", "faulthandler", "-c", WRITER, str(size), SGLANG_OMNI_RELAY_READ_ONLY=switch)
    if switch == "1":
        assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "read 7\n")
        line = WRITER[: WRITER.index("view[-1] = 8")].count("\n") + 1
        assert f'File "<string>", line {line} in main' in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "read 7\nwritten 8\noutstanding 0\n"), done.stderr


ARENA = """
import os
from sglang_omni import _core

arena = _core.ShmArena(1 << 20)
unread, _ = arena.put_raw("edge", "key", b"x" * 1000, 60.0)
child = os.fork()
if child == 0:
    # As a fork from C does, nothing has replaced this arena.
    try:
        arena.put_raw("edge", "key", b"y" * 1000, 60.0)
    except OSError as error:
        assert "forked from" in str(error)
    else:
        os._exit(3)
    assert (arena.revoke("key"), arena.revoke_place(unread)) == (0, False)
    arena.wait_begin("edge")
    arena.outstanding()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
second, _ = arena.put_raw("edge", "key2", b"z" * 1000, 60.0)
assert arena.state(unread) == "ready" and arena.outstanding() == 2
assert bytes(_core.ShmLease(arena.name, unread)) == b"x" * 1000
assert bytes(_core.ShmLease(arena.name, second)) == b"z" * 1000
print("fine")
"""


def test_a_childs_copy_of_an_arena_leaves_its_parents_payloads_alone() -> None:
    assert says(ARENA) == "fine\n"
