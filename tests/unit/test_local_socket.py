"""PUSH and PULL over Unix sockets: against libzmq, against each other, and against peers that misbehave."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from sglang_omni.pipeline.local_socket import PullSocket, PushSocket
from sglang_omni.pipeline.message_socket import BATCH, QUEUED_MESSAGES, ControlPlaneClosed
from sglang_omni.pipeline.zmtp import frame_header, opening

WAIT_S = 60
MIB = 1 << 20


class Pull:
    """A PullSocket and what it has delivered; ``takes`` says after each message whether to go on."""

    def __init__(self, endpoint: str, takes: Callable[[], bool] = lambda: True) -> None:
        self.messages: list[bytes] = []
        self.takes = takes
        self.socket = PullSocket(endpoint, self._deliver)

    def _deliver(self, message: bytes) -> bool:
        self.messages.append(message)
        return self.takes()

    async def until(self, count: int) -> list[bytes]:
        await until(lambda: len(self.messages) >= count)
        return self.messages


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def raw(endpoint: str) -> socket.socket:
    """A client that says what it likes."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(endpoint.removeprefix("ipc://"))
    client.settimeout(WAIT_S)
    return client


async def is_closed(client: socket.socket) -> bool:
    """Whether the other end closes the connection."""

    def read_to_the_end() -> None:
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass

    await asyncio.wait_for(asyncio.to_thread(read_to_the_end), WAIT_S)
    return True


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % i + b"." * size for i in range(count)]


# --- with libzmq at the other end -------------------------------------------------------------------

SIZES = [0, 1, 255, 256, 4096, 70_000, 3 * MIB]


async def test_what_libzmq_pushes_arrives(endpoint: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
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
async def test_libzmq_pulls_what_is_sent(
    endpoint: str, context: zmq.Context[zmq.Socket[bytes]], first: str
) -> None:
    pull = context.socket(zmq.PULL)
    pull.rcvtimeo = WAIT_S * 1000
    if first == "pull":
        pull.bind(endpoint)
    push = PushSocket(endpoint)
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


# --- a receiver that is away ------------------------------------------------------------------------


async def test_messages_wait_for_a_receiver_that_comes_later(endpoint: str) -> None:
    push = PushSocket(endpoint)
    sent = numbered(100)
    for message in sent:
        await push.send(message)
    await asyncio.sleep(0.05)
    pull = Pull(endpoint)
    assert await pull.until(100) == sent
    push.close()
    pull.socket.close()


async def test_after_a_restart_all_that_had_not_left_arrives_in_order_and_once(endpoint: str) -> None:
    first = Pull(endpoint, takes=lambda: False)
    push = PushSocket(endpoint)
    sent = numbered(QUEUED_MESSAGES, size=1000)
    for message in sent:
        await push.send(message)
    await first.until(1)
    assert len(first.messages) == 1
    first.socket.close()
    await asyncio.sleep(0.05)
    more = [b"later " + message for message in numbered(50)]
    sending = asyncio.gather(*(push.send(message) for message in more))
    second = Pull(endpoint)
    await until(lambda: second.messages[-1:] == more[-1:])
    await sending
    expected = sent + more
    # What the first one had in its hands or in its kernel buffer went with it: a run of messages from the
    # front, as many as that buffer holds.
    lost = len(expected) - len(second.messages)
    assert 0 < lost < 400
    assert second.messages == expected[lost:]
    push.close()
    second.socket.close()


async def test_a_message_that_had_left_in_part_is_sent_again_as_a_whole(endpoint: str) -> None:
    first = Pull(endpoint)
    push = PushSocket(endpoint)
    await push.send(b"small")
    await first.until(1)
    large = os.urandom(4 * MIB)  # More than the kernel's buffer takes.
    first.socket.pause()
    await push.send(large)
    await push.send(b"end")
    await asyncio.sleep(0.01)
    first.socket.close()
    second = Pull(endpoint)
    assert await second.until(2) == [large, b"end"]
    assert first.messages == [b"small"]
    push.close()
    second.socket.close()


@pytest.mark.parametrize("step", [1, 4, 1000])
async def test_a_kernel_that_takes_a_few_bytes_at_a_time(
    endpoint: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(socket.socket):
        def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
            return self.send(b"".join(buffers)[:step])

    monkeypatch.setattr(socket, "socket", Slow)
    pull, push = Pull(endpoint), PushSocket(endpoint)
    sent = [b"x" * size for size in (0, 1, 255, 256, 300)] + numbered(20)
    for message in sent:
        await push.send(message)
    assert await pull.until(len(sent)) == sent
    push.close()
    pull.socket.close()


async def test_a_receiver_that_dies_in_the_middle_of_the_handshake(endpoint: str) -> None:
    path = endpoint.removeprefix("ipc://")
    for heard in (0, 1, 64):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.settimeout(WAIT_S)
        if not heard:
            push = PushSocket(endpoint)
        await push.send(b"%d" % heard)
        connection, _ = await asyncio.to_thread(listener.accept)
        connection.send(opening("PULL")[:heard])
        await asyncio.sleep(0.01)
        connection.close()
        listener.close()
        os.unlink(path)
    pull = Pull(endpoint)
    assert await pull.until(3) == [b"0", b"1", b"64"]
    push.close()
    pull.socket.close()


async def test_a_sender_refuses_a_peer_that_is_no_pull_socket(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = endpoint.removeprefix("ipc://")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    push = PushSocket(endpoint)
    await push.send(b"secret")
    for _ in range(3):
        connection, _ = await asyncio.to_thread(listener.accept)
        connection.send(opening("PUSH"))
        heard = b""
        while data := await asyncio.to_thread(connection.recv, 4096):
            heard += data
        assert heard == opening("PUSH")
        connection.close()
    assert len([r for r in caplog.records if "goes on trying" in r.message]) == 1
    listener.close()
    push.close()


# --- backpressure -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "most"), [(0, QUEUED_MESSAGES + 1000), (MIB, 20)])
async def test_a_slow_reader_stops_the_sender(endpoint: str, size: int, most: int) -> None:
    pull = Pull(endpoint)
    push = PushSocket(endpoint)
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
    push = PushSocket(endpoint)
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


async def test_nothing_is_delivered_while_paused(endpoint: str) -> None:
    pull = Pull(endpoint, takes=lambda: len(pull.messages) % 10 != 0)
    push = PushSocket(endpoint)
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
    await asyncio.sleep(0.05)
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
    await asyncio.sleep(0.05)
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


# --- peers that misbehave ---------------------------------------------------------------------------

HOSTILE = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(1000),
    "the wrong type": opening("PULL"),
    "an absurd length": opening("PUSH") + frame_header(1 << 62),
    "unknown flags": opening("PUSH") + b"\xf0\xf0\xf0",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_peer_loses_its_own_connection_only(
    endpoint: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    pull = Pull(endpoint)
    push = PushSocket(endpoint)
    await push.send(b"before")
    await pull.until(1)
    client = raw(endpoint)
    client.sendall(data)
    assert await is_closed(client)
    await push.send(b"after")
    assert await pull.until(2) == [b"before", b"after"]
    assert len(caplog.records) == 1
    assert "Closed a connection" in caplog.text
    push.close()
    pull.socket.close()
    client.close()


async def test_peers_that_leave_at_any_byte(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    pull = Pull(endpoint)
    data = opening("PUSH") + frame_header(300) + bytes(300)
    gc.collect()  # What earlier tests left is closed now, and not while descriptors are counted.
    descriptors = len(os.listdir("/proc/self/fd"))
    for cut in range(0, len(data), 3):
        client = raw(endpoint)
        client.sendall(data[:cut])
        client.close()
        await asyncio.sleep(0)
    last = raw(endpoint)
    last.sendall(data)
    await pull.until(1)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2)
    assert len(pull.messages) == 1
    assert not caplog.records
    pull.socket.close()
    last.close()


async def test_without_descriptors_to_spare_accepting_waits_and_goes_on(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    pull = Pull(endpoint)
    client = socket.socket(socket.AF_UNIX)
    gc.collect()  # What earlier tests left would make room for the connection later.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        client.connect(endpoint.removeprefix("ipc://"))
        client.sendall(opening("PUSH") + frame_header(2) + b"hi")
        await asyncio.sleep(0.1)
        assert os.strerror(errno.EMFILE) in caplog.text
        assert len(caplog.records) == 1  # It does not spin.
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await pull.until(1) == [b"hi"]
    pull.socket.close()
    client.close()


# --- binding and closing ----------------------------------------------------------------------------


async def test_the_file_of_a_dead_run_is_replaced_and_removed_at_close(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("ipc://"))
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    pull = Pull(endpoint)
    push = PushSocket(endpoint)
    await push.send(b"a")
    assert await pull.until(1) == [b"a"]
    push.close()
    pull.socket.close()
    assert not path.exists()


async def test_closing_leaves_the_file_of_a_successor(endpoint: str) -> None:
    old, new = Pull(endpoint), Pull(endpoint)
    old.socket.close()
    push = PushSocket(endpoint)
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


@pytest.mark.parametrize("kind", [PushSocket, lambda endpoint: PullSocket(endpoint, lambda _: True)])
async def test_endpoints_that_cannot_be(kind: Callable[[str], object], tmp_path: Path) -> None:
    room = 107 - len(str(tmp_path)) - 1
    with pytest.raises(ValueError, match="108 bytes, more than the 107"):
        kind(f"ipc://{tmp_path}/{'x' * (room + 1)}")
    with pytest.raises(ValueError, match="names no file"):
        kind("ipc://@abstract")
    with pytest.raises(ValueError, match="names no file"):
        kind("ipc://")


async def test_the_longest_path_works(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/{'x' * (107 - len(str(tmp_path)) - 1)}"
    pull, push = Pull(endpoint), PushSocket(endpoint)
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
        push = PushSocket(endpoint)
        for message in sent:
            await push.send(message)
        push.close()

    asyncio.run(send_and_leave())
    assert [pull.recv() for _ in sent] == sent


async def test_closing_does_not_wait_for_a_peer_that_is_away(endpoint: str) -> None:
    push = PushSocket(endpoint)
    await push.send(b"in vain")
    push.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(ControlPlaneClosed):
        await push.send(b"too late")


async def test_closing_gives_up_on_a_peer_that_does_not_read(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    pull, push = Pull(endpoint), PushSocket(endpoint)
    pull.socket.pause()
    for message in numbered(100, size=64 << 10):
        await push.send(message)
    waiting = [asyncio.create_task(push.send(b"x" * MIB)) for _ in range(20)]
    await asyncio.sleep(0.05)
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
    pull, push = Pull(endpoint), PushSocket(endpoint)

    def takes() -> bool:
        pull.socket.close()
        return False

    pull.takes = takes
    for message in numbered(10):
        await push.send(message)
    assert await pull.until(1) == [b"0"]
    await asyncio.sleep(0.01)
    assert len(pull.messages) == 1
    assert pull.socket.closed
    push.close()
