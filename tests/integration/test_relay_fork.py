"""Forked children leave their parent's arena and views alone, and have their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
