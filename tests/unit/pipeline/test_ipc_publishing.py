"""Aborts on ``ipc://``: published to all, whatever single subscribers do or lack."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq
from ipc_harness import WAIT_S, is_closed, numbered, raw
from waiting import until

from sglang_omni.pipeline.transport.control_plane import StageControlPlane
from sglang_omni.pipeline.transport.ipc.publishing import IpcPublisher, IpcSubscriber
from sglang_omni.pipeline.transport.ipc.zmtp import frame_header, opening
from sglang_omni.proto import AbortMessage

# A coordinator without a descriptor for anything more, until it is told to go on.
FULL = """
import asyncio, os, resource, sys
from sglang_omni.pipeline.transport.control_plane import CoordinatorControlPlane
from sglang_omni.proto import AbortMessage

async def main():
    coordinator = CoordinatorControlPlane(f"ipc://{sys.argv[1]}/completion", f"ipc://{sys.argv[1]}/abort")
    await coordinator.start()
    await asyncio.to_thread(print)  # the thread's imports need descriptors too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    print("full", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    coordinator.broadcast_abort(AbortMessage("r"))
    await asyncio.to_thread(sys.stdin.readline)
    coordinator.close()

asyncio.run(main())
"""


class Subscribed:
    """A subscriber and what it has delivered."""

    def __init__(self, endpoint: str) -> None:
        self.messages: list[bytes] = []
        self.goes_on = True
        self.socket = IpcSubscriber(endpoint, self._deliver)

    def _deliver(self, message: bytes) -> bool:
        self.messages.append(message)
        return self.goes_on


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/abort"


@pytest.fixture
async def publisher(endpoint: str) -> AsyncIterator[IpcPublisher]:
    publisher = IpcPublisher(endpoint)
    yield publisher
    publisher.close()


async def test_a_coordinator_without_descriptors_lives_and_aborts_later(tmp_path: Path) -> None:
    errors = tmp_path / "stderr"
    with errors.open("wb") as stderr:
        coordinator = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FULL, str(tmp_path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert coordinator.stdin is not None
    assert coordinator.stdout is not None
    await asyncio.wait_for(coordinator.stdout.readuntil(b"full\n"), WAIT_S)
    stage = StageControlPlane(
        "a", f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/completion", f"ipc://{tmp_path}/abort"
    )
    await stage.start()
    refused = f"{tmp_path}/abort takes no connections"
    await until(lambda: refused in errors.read_text() or coordinator.returncode is not None)
    assert coordinator.returncode is None, errors.read_text()
    coordinator.stdin.write(b"\n")
    assert await asyncio.wait_for(stage.recv_abort(), WAIT_S) == AbortMessage("r")
    stage.close()
    await asyncio.wait_for(coordinator.communicate(b"\n"), WAIT_S)
    assert coordinator.returncode == 0


async def test_one_that_reads_nothing_holds_up_nobody(publisher: IpcPublisher, endpoint: str) -> None:
    slow, quick = Subscribed(endpoint), Subscribed(endpoint)
    publisher.send(b"first")
    await until(lambda: slow.messages == quick.messages == [b"first"])
    slow.goes_on = False
    slow.socket.pause()
    messages = numbered(3000, 1000)
    for message in messages:
        publisher.send(message)
    await until(lambda: len(quick.messages) == 3001)
    assert slow.messages == [b"first"]
    slow.goes_on = True
    slow.socket.resume()
    await until(lambda: len(slow.messages) == 3001)
    assert slow.messages[1:] == quick.messages[1:] == messages
    slow.socket.close()
    quick.socket.close()


async def test_a_subscriber_comes_before_its_publisher_and_outlives_it(endpoint: str) -> None:
    early = Subscribed(endpoint)
    for number in range(2):
        publisher = IpcPublisher(endpoint)
        publisher.send(b"%d" % number)
        await until(lambda: early.messages[-1:] == [b"%d" % number])  # noqa: B023
        publisher.close()
    assert early.messages == [b"0", b"1"]
    early.socket.close()


async def test_libzmq_can_subscribe(publisher: IpcPublisher, endpoint: str) -> None:
    publisher.send(b"before")
    with zmq.Context() as context, context.socket(zmq.SUB) as foreign:
        foreign.subscribe(b"")
        foreign.rcvtimeo = 1000 * WAIT_S
        foreign.connect(endpoint)
        assert await asyncio.to_thread(foreign.recv) == b"before"
        publisher.send(b"after")
        assert await asyncio.to_thread(foreign.recv) == b"after"


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", opening("PUSH"), opening("SUB") + frame_header(1, 8)]
)
async def test_who_breaks_the_protocol_loses_its_own_connection(
    publisher: IpcPublisher, endpoint: str, said: bytes
) -> None:
    hostile, ours = raw(endpoint), Subscribed(endpoint)
    hostile.sendall(said)
    assert await is_closed(hostile)
    publisher.send(b"on")
    await until(lambda: ours.messages == [b"on"])
    hostile.close()
    ours.socket.close()
