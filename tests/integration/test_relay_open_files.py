"""A sender that has no file descriptor left for a new reader."""

from __future__ import annotations

import subprocess
import sys

from sglang_omni._core import ShmLease

_SENDER = """
import os, resource, time
from sglang_omni._core import ShmArena

arena = ShmArena(1 << 20)
place, _ = arena.put_raw("edge", "key", b"x" * 1000, 60.0)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
print(arena.name, *place, flush=True)
input()  # a reader is about to connect
before = time.process_time()
time.sleep(1)
print(time.process_time() - before, flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
input()
"""


def test_it_is_not_kept_busy_and_serves_the_reader_when_it_can() -> None:
    sender = subprocess.Popen(
        [sys.executable, "-c", _SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        name, *place = sender.stdout.readline().split()
        sender.stdin.write("\n")
        sender.stdin.flush()
        lease = ShmLease(name, tuple(map(int, place)))  # answered once the limit is up again
        assert bytes(lease) == b"x" * 1000
        # Of the second it had to wait. Whoever tries again and again uses up all he can get of it.
        assert float(sender.stdout.readline()) < 0.1
        del lease
        sender.communicate("\n", timeout=120)
