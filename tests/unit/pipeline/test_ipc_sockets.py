"""PUSH and PULL over Unix sockets: against libzmq, backpressure, fairness, binding and closing."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from ipc_harness import MIB, WAIT_S, Pull, numbered, raw
from waiting import rounds, until

from sglang_omni.pipeline.transport.base import ControlPlaneClosed
from sglang_omni.pipeline.transport.ipc.sockets import IpcPullSocket, IpcPushSocket
from sglang_omni.pipeline.transport.ipc.zmtp import frame_header, opening
from sglang_omni.pipeline.transport.limits import BATCH, QUEUED_MESSAGES


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


# --- with libzmq at the other end -------------------------------------------------------------------

SIZES = [0, 1, 255, 256, 4096, 70_000, 3 * MIB]


async def test_messages_that_libzmq_pushes_arrive(
    endpoint: str, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    pull = Pull(endpoint)
    push = context.socket(zmq.PUSH)
    push.connect(endpoint)
    sent = [os.urandom(size) for size in SIZES] + numbered(500)
    for message in sent:
        await asyncio.to_thread(push.send, message)
    push.send_multipart([b"several", b"parts"])
    push.send(b"end")
    assert await pull.until(len(sent) + 1) == [*sent, b"end"]
    pull.socket.close()


@pytest.mark.parametrize("first", ["push", "pull"])
async def test_libzmq_pulls_messages_that_are_sent(
    endpoint: str, context: zmq.Context[zmq.Socket[bytes]], first: str
) -> None:
    pull = context.socket(zmq.PULL)
    pull.rcvtimeo = WAIT_S * 1000
    if first == "pull":
        pull.bind(endpoint)
    push = IpcPushSocket(endpoint)
    sent = [os.urandom(size) for size in SIZES] + numbered(500)
    for message in sent:
        await push.send(message)
    if first == "push":
        pull.bind(endpoint)
    for message in sent:
        assert await asyncio.to_thread(pull.recv) == message
    push.close()


async def test_libzmq_finds_a_receiver_that_was_restarted(
    endpoint: str, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    push = context.socket(zmq.PUSH)
    push.reconnect_ivl = 10
    push.connect(endpoint)
    pull = Pull(endpoint)
    push.send(b"one")
    await pull.until(1)
    pull.socket.close()
    again = Pull(endpoint)
    async with asyncio.timeout(WAIT_S):
        while not again.messages:  # One sent before libzmq notices is lost.
            push.send(b"two")
            await asyncio.sleep(0.02)
    again.socket.close()


# --- backpressure -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "most"), [(0, QUEUED_MESSAGES + 1000), (MIB, 20)])
async def test_a_slow_reader_stops_the_sender(endpoint: str, size: int, most: int) -> None:
    pull = Pull(endpoint)
    push = IpcPushSocket(endpoint)
    await push.send(b"first")
    await pull.until(1)
    pull.socket.pause()
    count = 2 * most
    accepted = 0

    async def send() -> None:
        nonlocal accepted
        for message in numbered(count, size):
            await push.send(message)
            accepted += 1

    sending = asyncio.create_task(send())
    await asyncio.wait({sending}, timeout=0.3)
    assert not sending.done()
    assert accepted < most
    assert len(pull.messages) == 1
    pull.socket.resume()
    await asyncio.wait_for(sending, WAIT_S)
    assert await pull.until(count + 1) == [b"first", *numbered(count, size)]
    push.close()
    pull.socket.close()


async def test_senders_that_wait_are_served_in_the_order_of_their_calls(endpoint: str) -> None:
    push = IpcPushSocket(endpoint)
    sends = [asyncio.create_task(push.send(message)) for message in numbered(QUEUED_MESSAGES + 100)]
    await asyncio.sleep(0)
    assert [task.done() for task in sends[-101:]] == [True] + [False] * 100
    # One that gives up takes its message back.
    sends[-50].cancel()
    pull = Pull(endpoint)
    expected = numbered(QUEUED_MESSAGES + 100)
    del expected[-50]
    assert await pull.until(len(expected)) == expected
    await asyncio.gather(*sends, return_exceptions=True)
    assert [task.cancelled() for task in sends].count(True) == 1
    push.close()
    pull.socket.close()


class Message(bytearray):
    """One that a weak reference can be had to."""


async def test_a_cancelled_send_is_neither_sent_nor_kept(endpoint: str) -> None:
    push = IpcPushSocket(endpoint)
    for message in (queued := numbered(QUEUED_MESSAGES)):
        await push.send(message)
    kept = asyncio.create_task(push.send(b"kept"))
    message = Message(b"not kept")
    gone = weakref.ref(message)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(push.send(message), 0.01)
    del message
    gc.collect()
    assert gone() is None
    pull = Pull(endpoint)
    assert await pull.until(len(queued) + 1) == [*queued, b"kept"]
    await kept
    push.close()
    pull.socket.close()


async def test_nothing_is_delivered_while_paused(endpoint: str) -> None:
    pull = Pull(endpoint, takes=lambda: len(pull.messages) % 10 != 0)
    push = IpcPushSocket(endpoint)
    sent = numbered(100)
    for message in sent:
        await push.send(message)
    for count in range(10, 100, 10):
        await pull.until(count)
        await push.send(b"late %d" % count)
        await asyncio.sleep(0.002)
        assert len(pull.messages) == count
        pull.socket.resume()
    await pull.until(100)
    pull.takes = lambda: True
    pull.socket.resume()
    assert (await pull.until(109))[:100] == sent
    push.close()
    pull.socket.close()


# --- fairness ---------------------------------------------------------------------------------------


def filled_client(endpoint: str, name: int) -> socket.socket:
    """A peer that has sent as much as the kernel takes."""
    client = raw(endpoint)
    client.sendall(opening("PUSH"))
    client.setblocking(False)
    try:
        while True:
            client.send((frame_header(4) + b"%04d" % name) * 200)
    except BlockingIOError:
        return client


@pytest.mark.parametrize("one_by_one", [False, True])
async def test_many_senders_get_their_turns(endpoint: str, one_by_one: bool) -> None:
    pull = Pull(endpoint)
    pull.socket.pause()
    clients = [filled_client(endpoint, number) for number in range(8)]
    await rounds()
    if one_by_one:  # A handler that takes one message at a time, whose stage is always full.
        pull.takes = lambda: False
        for _ in range(80):
            count = len(pull.messages)
            pull.socket.resume()
            await until(lambda count=count: len(pull.messages) > count)
    else:
        pull.socket.resume()
        await pull.until(8 * 3 * BATCH)
        pull.socket.pause()
    share = Counter(pull.messages[: 80 if one_by_one else 8 * 3 * BATCH])
    assert len(share) == 8
    assert min(share.values()) * 3 > max(share.values())
    pull.socket.close()
    for client in clients:
        client.close()


async def test_the_loop_gets_its_turn_between_batches(endpoint: str) -> None:
    pull = Pull(endpoint)
    pull.socket.pause()
    client = filled_client(endpoint, 0)
    await rounds()
    seen = []
    loop = asyncio.get_running_loop()

    def other_work() -> None:
        seen.append(len(pull.messages))
        if len(pull.messages) < 20 * BATCH:
            loop.call_soon(other_work)

    pull.socket.resume()
    other_work()
    await pull.until(20 * BATCH)
    await until(lambda: seen[-1] >= 20 * BATCH)
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert max(steps) <= 2 * BATCH
    pull.socket.close()
    client.close()


# --- binding and closing ----------------------------------------------------------------------------


async def test_the_file_of_a_dead_run_is_replaced_and_removed_at_close(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("ipc://"))
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    pull = Pull(endpoint)
    push = IpcPushSocket(endpoint)
    await push.send(b"a")
    assert await pull.until(1) == [b"a"]
    push.close()
    pull.socket.close()
    assert not path.exists()


async def test_closing_leaves_the_file_of_a_successor(endpoint: str) -> None:
    old, new = Pull(endpoint), Pull(endpoint)
    old.socket.close()
    push = IpcPushSocket(endpoint)
    await push.send(b"a")
    assert await new.until(1) == [b"a"]
    push.close()
    new.socket.close()


async def test_another_kind_of_file_is_left_alone(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("ipc://"))
    path.write_text("precious")
    with pytest.raises(OSError, match="in use"):
        Pull(endpoint)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("kind", [IpcPushSocket, lambda endpoint: IpcPullSocket(endpoint, lambda _: True)])
async def test_invalid_endpoints_are_refused(kind: Callable[[str], object], tmp_path: Path) -> None:
    room = 107 - len(str(tmp_path)) - 1
    with pytest.raises(ValueError, match="108 bytes, more than the 107"):
        kind(f"ipc://{tmp_path}/{'x' * (room + 1)}")
    with pytest.raises(ValueError, match="names no file"):
        kind("ipc://@abstract")
    with pytest.raises(ValueError, match="names no file"):
        kind("ipc://")


async def test_the_longest_path_works(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/{'x' * (107 - len(str(tmp_path)) - 1)}"
    pull, push = Pull(endpoint), IpcPushSocket(endpoint)
    await push.send(b"a")
    assert await pull.until(1) == [b"a"]
    push.close()
    pull.socket.close()


def test_the_last_messages_leave_though_the_loop_ends(
    endpoint: str, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    pull = context.socket(zmq.PULL)
    pull.rcvtimeo = WAIT_S * 1000
    pull.bind(endpoint)
    sent = numbered(100, size=64 << 10)

    async def send_and_leave() -> None:
        push = IpcPushSocket(endpoint)
        for message in sent:
            await push.send(message)
        push.close()

    asyncio.run(send_and_leave())
    assert [pull.recv() for _ in sent] == sent


async def test_closing_does_not_wait_for_a_peer_that_is_away(endpoint: str) -> None:
    push = IpcPushSocket(endpoint)
    await push.send(b"in vain")
    push.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(ControlPlaneClosed):
        await push.send(b"too late")


async def test_closing_gives_up_on_a_peer_that_does_not_read(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    pull, push = Pull(endpoint), IpcPushSocket(endpoint)
    pull.socket.pause()
    for message in numbered(100, size=64 << 10):
        await push.send(message)
    waiting = [asyncio.create_task(push.send(b"x" * MIB)) for _ in range(20)]
    await rounds()
    push.close()
    push.close()
    for task in waiting[-3:]:
        with pytest.raises(ControlPlaneClosed):
            await task
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: "have not left" in caplog.text)
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    pull.socket.close()


async def test_a_handler_may_close_the_socket(endpoint: str) -> None:
    pull, push = Pull(endpoint), IpcPushSocket(endpoint)

    def takes() -> bool:
        pull.socket.close()
        return False

    pull.takes = takes
    for message in numbered(10):
        await push.send(message)
    assert await pull.until(1) == [b"0"]
    await rounds()
    assert len(pull.messages) == 1
    assert not Path(endpoint.removeprefix("ipc://")).exists()
    push.close()
