"""Messages over tcp:// through links that break, and to processes that are replaced by others."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import zmq
from waiting import until

from sglang_omni.pipeline.transport.keys import RunKeys, secure_client
from sglang_omni.pipeline.transport.limits import QUEUED_MESSAGES
from sglang_omni.pipeline.transport.tcp import push as tcp_push
from sglang_omni.pipeline.transport.tcp import sockets as tcp_sockets
from sglang_omni.pipeline.transport.tcp.pull import TcpPullSocket
from sglang_omni.pipeline.transport.tcp.push import TcpPushSocket

KEYS = RunKeys.generate()
ANY = "tcp://127.0.0.1:*"


class Pull:
    """A receiver, what it has received, and for how many more messages it has room."""

    def __init__(self, endpoint: str = ANY, room: int = 1 << 30) -> None:
        self.messages: list[bytes] = []
        self.room = room
        self.socket = TcpPullSocket(endpoint, KEYS, self._take)
        self.endpoint = self.socket.endpoint

    def _take(self, message: bytes) -> bool:
        self.messages.append(message)
        self.room -= 1
        return self.room > 0

    async def until(self, count: int) -> list[bytes]:
        await until(lambda: len(self.messages) >= count)
        return self.messages


class Link:
    """A port that leads to an endpoint, over connections that can be cut, or go silent."""

    def __init__(self, endpoint: str) -> None:
        self._port = int(endpoint.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 12):
                sink.write(data)
                await sink.drain()
        sink.close()

    def silence(self) -> None:
        """Carries nothing more over the connections there are, and does not end them."""
        for task in self._tasks:
            task.cancel()

    def cut(self) -> None:
        """Ends the connections there are, with what is on them."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)


@pytest.fixture
async def pull() -> AsyncIterator[Pull]:
    pull = Pull()
    yield pull
    pull.socket.close()


@pytest.fixture
async def link(pull: Pull) -> AsyncIterator[Link]:
    link = Link(pull.endpoint)
    yield link
    await link.close()


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


async def send_all(push: TcpPushSocket, messages: list[bytes]) -> None:
    for message in messages:
        await push.send(message)


async def send_until_one_arrives(push: TcpPushSocket, message: bytes, pull: Pull) -> None:
    """The first ones may be given up before there is a connection."""
    before = len(pull.messages)
    async with asyncio.timeout(60):
        while len(pull.messages) == before:
            await push.send(message)
            await asyncio.sleep(0.01)


async def test_a_link_that_is_cut_again_and_again_loses_nothing_and_keeps_the_order(
    pull: Pull, link: Link
) -> None:
    push = TcpPushSocket(await link.open(), KEYS)
    sending = asyncio.create_task(send_all(push, numbered(20_000)))
    for count in range(1000, 20_000, 1000):
        await pull.until(count)
        link.cut()
    assert await pull.until(20_000) == numbered(20_000)
    await sending
    assert link.connections > 10
    push.close()


async def test_a_silent_link_is_given_up_and_its_messages_are_sent_again(
    pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_sockets, "HEARTBEAT_MS", 100)
    monkeypatch.setattr(tcp_sockets, "BROKEN_MS", 1000)
    pull = Pull()
    link = Link(pull.endpoint)
    push = TcpPushSocket(await link.open(), KEYS)
    await push.send(b"0")
    await pull.until(1)
    link.silence()
    await send_all(push, numbered(10, first=1))
    assert await pull.until(11) == numbered(11)
    assert link.connections >= 2
    push.close()
    pull.socket.close()
    await link.close()


async def test_a_paused_receiver_is_not_considered_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_sockets, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(tcp_sockets, "BROKEN_MS", 2000)
    pull = Pull(room=1)
    link = Link(pull.endpoint)
    push = TcpPushSocket(await link.open(), KEYS)
    messages = numbered(3 * QUEUED_MESSAGES)
    sending = asyncio.create_task(send_all(push, messages))
    await asyncio.wait({sending}, timeout=3)
    assert len(pull.messages) == 1
    pull.room = 1 << 30
    pull.socket.resume()
    assert await pull.until(len(messages)) == messages
    assert link.connections == 1
    await sending
    push.close()
    pull.socket.close()
    await link.close()


async def test_a_message_that_comes_over_two_connections_is_taken_once() -> None:
    pull = Pull(room=1)
    push = TcpPushSocket(pull.endpoint, KEYS, lambda frames, reason: None)
    await send_all(push, numbered(500))
    await pull.until(1)
    push.redirect(pull.endpoint)
    await until(lambda: push._unreachable is None)  # it has said hello, behind what came over the other one
    pull.room = 1 << 30
    pull.socket.resume()
    await push.send(b"500")
    assert await pull.until(501) == numbered(501)
    push.close()
    pull.socket.close()


@pytest.mark.parametrize("leaves", [True, False])
async def test_the_log_distinguishes_a_receiver_that_leaves_from_a_link_that_is_cut(
    leaves: bool, pull: Pull, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    through = await link.open()
    endpoint = pull.endpoint if leaves else through
    push = TcpPushSocket(endpoint, KEYS, lambda frames, reason: None)
    await push.send(b"0")
    await pull.until(1)
    with caplog.at_level("INFO"):
        if leaves:
            pull.socket.close()
        else:
            link.cut()
        await until(lambda: push._retry is not None)
    text = f"The receiver at {endpoint} has left" if leaves else f"Lost the connection to {endpoint}, and"
    assert [message.startswith(text) for message in caplog.messages] == [True]
    push.close()


async def test_the_successor_of_a_process_gets_only_what_was_never_sent() -> None:
    lost: list[bytes] = []
    first = Pull(room=1)
    push = TcpPushSocket(first.endpoint, KEYS, lambda frames, reason: lost.extend(frames))
    await push.send(b"0")
    await first.until(1)
    await send_all(push, numbered(5, first=1))  # sent, and never taken
    first.socket.close()
    await until(lambda: not push._is_open)
    await send_all(push, numbered(5, first=6))
    second = Pull(first.endpoint)
    assert await second.until(5) == numbered(5, first=6)
    # The first one may or may not have confirmed what it took.
    assert lost[-5:] == numbered(5, first=1)
    assert set(lost) <= set(numbered(6))
    push.close()
    second.socket.close()


async def test_a_sender_goes_on_at_the_endpoint_it_is_reported() -> None:
    first, second = Pull(), Pull()
    push = TcpPushSocket(first.endpoint, KEYS)
    await push.send(b"0")
    await first.until(1)
    push.redirect(second.endpoint)
    await send_all(push, numbered(5, first=1))
    assert (await second.until(5))[-5:] == numbered(5, first=1)
    assert first.messages == [b"0"]
    push.close()
    first.socket.close()
    second.socket.close()


async def test_messages_for_an_unreachable_receiver_are_reported_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_push, "UNREACHABLE_S", 0.1)
    # Nobody's but this test's, though nobody listens.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    lost: list[bytes] = []
    reasons: list[str] = []

    def lose(frames: list[bytes], reason: str) -> None:
        lost.extend(frames)
        reasons.append(reason)

    push = TcpPushSocket(f"tcp://127.0.0.1:{port}", KEYS, lose)
    await send_all(push, numbered(QUEUED_MESSAGES + 500))  # more than fit: the senders go on as well
    await until(lambda: len(lost) == QUEUED_MESSAGES + 500)
    assert lost == numbered(QUEUED_MESSAGES + 500)
    assert reasons[0] == f"no peer was reached at tcp://127.0.0.1:{port} for 0.1 s"
    pull = Pull(f"tcp://127.0.0.1:{port}")
    await send_until_one_arrives(push, b"later", pull)
    assert set(pull.messages) == {b"later"}
    push.close()
    pull.socket.close()
    reserved.close()


async def test_messages_given_up_while_the_link_is_down_do_not_come_later(
    pull: Pull, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_push, "UNREACHABLE_S", 0.1)
    lost: list[bytes] = []
    push = TcpPushSocket(await link.open(), KEYS, lambda frames, reason: lost.extend(frames))
    await push.send(b"0")
    await pull.until(1)
    port = push.endpoint.rpartition(":")[2]
    await link.close()
    await until(lambda: not push._is_open)
    await send_all(push, numbered(5, first=1))
    await until(lambda: lost[-5:] == numbered(5, first=1))
    link._server = await asyncio.start_server(link._accept, "127.0.0.1", int(port))
    await send_until_one_arrives(push, b"6", pull)
    assert set(pull.messages) == {b"0", b"6"}
    push.close()


async def test_a_message_that_is_too_large_is_the_senders_error(
    pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_push, "MAX_MESSAGE", 1000)
    push = TcpPushSocket(pull.endpoint, KEYS)
    with pytest.raises(ValueError, match="a message of 1001 bytes, more than the 1000"):
        await push.send(bytes(1001))
    await push.send(bytes(1000))
    assert await pull.until(1) == [bytes(1000)]
    push.close()


async def test_a_peer_with_the_keys_that_breaks_the_protocol_harms_no_other(
    pull: Pull, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_sockets, "MAX_MESSAGE", 1 << 20)
    pull = Pull()
    push = TcpPushSocket(pull.endpoint, KEYS)
    await push.send(b"before")
    await pull.until(1)
    rude = zmq.Context.instance().socket(zmq.DEALER)
    rude.linger = 0
    secure_client(rude, KEYS)
    rude.connect(pull.endpoint)
    rude.send(b"no greeting")
    rude.send_multipart([b"several"] * 100)
    rude.send(bytes(2 << 20))  # larger than is taken: it loses its connection
    rude.send(tcp_push.HELLO.pack(tcp_push.HELLO_MAGIC, bytes(16), 1 << 63, 0))
    rude.send_multipart([b"several", b"parts"])
    rude.send(b"a message of its own")
    await pull.until(2)
    await push.send(b"after")
    assert await pull.until(3) == [b"before", b"a message of its own", b"after"]
    assert "from a peer that did not say who it is" in caplog.text
    assert "Dropped a message of 2 parts" in caplog.text
    rude.close()
    push.close()
    pull.socket.close()


async def test_sockets_without_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="need the run's keys"):
        TcpPullSocket(ANY, None, lambda message: True)
    with pytest.raises(ValueError, match="need the run's keys"):
        TcpPushSocket("tcp://127.0.0.1:9", None)


def test_a_secret_is_not_shown_and_gives_the_pair() -> None:
    assert KEYS.secret not in repr(KEYS)
    assert RunKeys.from_secret(KEYS.secret) == KEYS
    with pytest.raises(ValueError, match="40 characters of Z85"):
        RunKeys.from_secret("short")


async def test_an_invalid_endpoint_is_treated_as_unreachable(
    pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_push, "UNREACHABLE_S", 0.05)
    lost: list[bytes] = []
    push = TcpPushSocket("tcp://nowhere:port", KEYS, lambda frames, reason: lost.extend(frames))
    await push.send(b"0")
    await until(lambda: lost == [b"0"])
    push.redirect(pull.endpoint)
    await send_until_one_arrives(push, b"1", pull)
    push.close()


async def test_connections_that_come_and_go_leave_nothing_open(pull: Pull, link: Link) -> None:
    push = TcpPushSocket(await link.open(), KEYS)
    await push.send(b"0")
    await pull.until(1)
    before = len(os.listdir("/proc/self/fd"))
    for i in range(1, 51):
        push.redirect(push.endpoint)
        await push.send(b"%d" % i)
        await pull.until(i + 1)
    # libzmq closes in a thread of its own.
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 5)
    push.close()
