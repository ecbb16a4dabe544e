"""Children forked while other threads read: none waits for a lock that was held, none keeps a connection."""

from __future__ import annotations

import subprocess
import sys

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


def _run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_child_waits_for_a_lock_of_its_parents_threads() -> None:
    assert _run(BUSY) == "hung: 0\n"


def test_a_child_has_none_of_its_parents_connections() -> None:
    assert _run(LEFT) == "fine\n"
