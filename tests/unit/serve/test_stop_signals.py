"""Signals that end a server, also where whoever started it has it ignore them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sglang_omni.serve.launch.stopping import on_stop_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def ignored() -> Iterator[None]:
    """As in a program that was started with ``nohup PROGRAM &``."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("ignored")
async def test_nohup_is_respected_and_a_signal_that_is_meant_is_heard() -> None:
    reported: list[signal.Signals] = []
    done = asyncio.Event()

    def tell(number: signal.Signals) -> None:
        reported.append(number)
        if number == signal.SIGINT:
            done.set()

    on_stop_signals(tell)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    await asyncio.wait_for(done.wait(), 30)
    assert reported == [signal.SIGTERM, signal.SIGINT]
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


CHILD = """
import os, sys, time
from sglang_omni.serve.launch.stopping import stop_with_parent
stop_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
sys.stdin.read()
"""


@pytest.mark.usefixtures("ignored")
def test_a_child_ends_with_its_parent_that_ignores_ctrl_c() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        # Its end of the pipe is closed when the child has ended, too.
        assert parent.stdout.read() == ""
