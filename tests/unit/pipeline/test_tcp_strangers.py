"""Strangers at a tcp:// port: they get nothing in, and a log line says so."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import zmq
import zmq.utils.monitor
from waiting import until

from sglang_omni.pipeline.transport import monitor
from sglang_omni.pipeline.transport.ipc.zmtp import opening
from sglang_omni.pipeline.transport.keys import RunKeys, secure_client
from sglang_omni.pipeline.transport.publisher import Publisher
from sglang_omni.pipeline.transport.tcp import sockets as tcp_sockets
from sglang_omni.pipeline.transport.tcp.link import HELLO, HELLO_MAGIC
from sglang_omni.pipeline.transport.tcp.pull import TcpPullSocket
from sglang_omni.pipeline.transport.tcp.push import TcpPushSocket

KEYS = RunKeys.generate()
ANY = "tcp://127.0.0.1:*"
GREETING = HELLO.pack(HELLO_MAGIC, bytes(16), 0, 0)


class Server:
    """A receiver, and what it has received."""

    def __init__(self, keys: RunKeys = KEYS) -> None:
        self.messages: list[bytes] = []
        self.socket = TcpPullSocket(ANY, keys, lambda message: self.messages.append(message) or True)
        self.endpoint = self.socket.endpoint
        self.port = int(self.endpoint.rpartition(":")[2])

    async def serves(self) -> None:
        """Fails unless somebody with the keys gets a message in, which is the first that anybody did."""
        push = TcpPushSocket(self.endpoint, KEYS)
        await push.send(b"from us")
        await until(lambda: len(self.messages) > 0)
        assert self.messages == [b"from us"]
        push.close()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(monitor, "REFUSALS_S", 0.2)
    monkeypatch.setattr(tcp_sockets, "_HANDSHAKE_MS", 500)
    server = Server()
    yield server
    server.socket.close()


class Event:
    """What a client's monitor says of its first connection."""

    def __init__(self, client: zmq.Socket[bytes]) -> None:
        self._monitor = client.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)

    async def next(self) -> zmq.Event:
        await until(lambda: bool(self._monitor.poll(0)))
        frames = self._monitor.recv_multipart()
        return zmq.Event(zmq.utils.monitor.parse_monitor_message(frames)["event"])


OTHERS = RunKeys.generate()


@pytest.mark.parametrize(
    ("keys", "server_key"),
    [(None, None), (OTHERS, KEYS.public), (OTHERS, OTHERS.public)],
    ids=["no key", "its own key and our public one", "another run's key"],
)
async def test_without_the_runs_key_nothing_gets_in(
    server: Server, keys: RunKeys | None, server_key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    client = zmq.Context.instance().socket(zmq.DEALER)
    client.linger = 0
    if keys is not None and server_key is not None:
        secure_client(client, keys)
        client.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    event = Event(client)
    client.connect(server.endpoint)
    with suppress(zmq.Again):  # It may have been shown the door by now, and libzmq does not try again.
        client.send(GREETING, zmq.NOBLOCK)
        client.send(b"from a stranger", zmq.NOBLOCK)
    assert await event.next() == zmq.Event.DISCONNECTED
    await server.serves()
    await until(lambda: "connections to " + server.endpoint in caplog.text)
    assert "they did not show the run's keys" in caplog.text
    client.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(range(255, 0, -1)) * 40,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff" + bytes(8) + b"\x7f\x03",
        opening("PUSH") + b"\x00\x03abc",
        b"",
    ],
    ids=["http", "garbage", "tls", "half a greeting", "no security", "silence"],
)
async def test_a_peer_of_another_protocol_is_disconnected(
    server: Server, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    try:
        async with asyncio.timeout(60):
            while await reader.read(4096):
                pass
    except ConnectionResetError:
        pass
    writer.close()
    await server.serves()
    await until(lambda: "Refused 1 connections" in caplog.text)


async def test_a_thousand_silent_connections_hold_up_no_message(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
    await server.serves()
    # Each is closed when its time for a handshake is over, and all are told of in a few lines.

    def read_to_the_end() -> None:
        for one in idle:
            one.settimeout(60)
            while one.recv(100):
                pass
            one.close()

    await asyncio.to_thread(read_to_the_end)
    await until(lambda: "Refused" in caplog.text)
    refused = [record for record in caplog.records if record.message.startswith("Refused")]
    assert len(refused) < 50


async def test_aborts_reach_only_subscribers_with_the_keys() -> None:
    publisher = Publisher(ANY, KEYS)
    publisher.send(b"abort")
    strangers, ours = (zmq.Context.instance().socket(zmq.SUB) for _ in range(2))
    for client, keys in ((strangers, RunKeys(KEYS.public, OTHERS.secret)), (ours, KEYS)):
        client.linger = 0
        client.subscribe(b"")
        secure_client(client, keys)
    strangers.setsockopt(zmq.CURVE_PUBLICKEY, OTHERS.public.encode())
    event = Event(strangers)
    strangers.connect(publisher.endpoint)
    ours.connect(publisher.endpoint)
    await until(lambda: bool(ours.poll(0)))
    assert ours.recv() == b"abort"
    assert await event.next() == zmq.Event.DISCONNECTED
    assert not strangers.poll(0)
    strangers.close()
    ours.close()
    publisher.close()


async def test_two_runs_in_one_process_are_separate(server: Server) -> None:
    other = Server(OTHERS)
    astray = TcpPushSocket(other.endpoint, KEYS)
    await astray.send(b"to the wrong run")
    push = TcpPushSocket(other.endpoint, OTHERS)
    await push.send(b"hello")
    await until(lambda: len(other.messages) > 0)
    await server.serves()
    assert other.messages == [b"hello"]
    for sender in (push, astray):
        sender.close()
    other.socket.close()
