"""What is read while other threads look at every container there is."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A thread that holds, and looks into, whatever the collector knows of: what a profiler does.
LOOKED_AT = """
import collections, gc, threading, sys
import numpy as np
from sglang_omni.proto import codec

sys.setswitchinterval(1e-6)
stop = threading.Event()
half = []

def look():
    while not stop.is_set():
        for found in gc.get_objects():
            # To look into a list that is half made crashes.
            if type(found) in (list, tuple) and len(found) == 41 and found is not expected:
                try:
                    if len([part for part in found]) != 41:
                        half.append("shorter")
                    half.append(repr(found[-1])) if repr(found[-1]) == "<NULL>" else None
                except SystemError as error:
                    half.append(str(error))
            found = None

# What Python code makes lets other threads in.
value = np.float32(1.5)
expected = None
kinds = {"tuple": tuple([value] * 41), "list": [value] * 41}
expected = kinds[sys.argv[1]]
message = codec.pack(expected)
looking = [threading.Thread(target=look) for _ in range(2)]
for thread in looking:
    thread.start()
try:
    for _ in range(600):
        read = codec.unpack(message)
        assert read == expected, read
finally:
    stop.set()
    for thread in looking:
        thread.join()
assert not half, half[:3]
print("fine")
"""


@pytest.mark.parametrize("kind", ["tuple", "list"])
def test_a_container_is_whole_when_another_thread_finds_it(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_AT, kind], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]
