"""PUSH and PULL over Unix sockets whose other end goes away, comes back, or misbehaves."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ipc_harness import MIB, WAIT_S, Pull, is_closed, numbered, raw
from waiting import rounds, until

from sglang_omni.pipeline.transport.ipc.sockets import IpcPushSocket
from sglang_omni.pipeline.transport.ipc.zmtp import frame_header, opening
from sglang_omni.pipeline.transport.limits import QUEUED_MESSAGES


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


# --- a receiver that is away ------------------------------------------------------------------------


async def test_messages_wait_for_a_receiver_that_comes_later(endpoint: str) -> None:
    push = IpcPushSocket(endpoint)
    sent = numbered(100)
    for message in sent:
        await push.send(message)
    await rounds()
    pull = Pull(endpoint)
    assert await pull.until(100) == sent
    push.close()
    pull.socket.close()


async def test_after_a_restart_unsent_messages_arrive_in_order_and_once(endpoint: str) -> None:
    first = Pull(endpoint, takes=lambda: False)
    push = IpcPushSocket(endpoint)
    sent = numbered(QUEUED_MESSAGES, size=1000)
    for message in sent:
        await push.send(message)
    await first.until(1)
    assert len(first.messages) == 1
    first.socket.close()
    await rounds()
    more = [b"later " + message for message in numbered(50)]
    sending = asyncio.gather(*(push.send(message) for message in more))
    second = Pull(endpoint)
    await until(lambda: second.messages[-1:] == more[-1:])
    await sending
    expected = sent + more
    # What the first one had in its hands or in its kernel buffer went with it: a run of messages from the
    # front, as many as that buffer holds.
    with socket.socket(socket.AF_UNIX) as like_it:
        buffer = like_it.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    lost = len(expected) - len(second.messages)
    assert 0 < lost < 2 * buffer / 1000
    assert second.messages == expected[lost:]
    push.close()
    second.socket.close()


async def test_a_message_that_had_left_in_part_is_sent_again_as_a_whole(endpoint: str) -> None:
    first = Pull(endpoint)
    push = IpcPushSocket(endpoint)
    await push.send(b"small")
    await first.until(1)
    large = os.urandom(4 * MIB)  # More than the kernel's buffer takes.
    first.socket.pause()
    await push.send(large)
    await push.send(b"end")
    await rounds()
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
    pull, push = Pull(endpoint), IpcPushSocket(endpoint)
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
            push = IpcPushSocket(endpoint)
        await push.send(b"%d" % heard)
        connection, _ = await asyncio.to_thread(listener.accept)
        connection.send(opening("PULL")[:heard])
        await rounds()
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
    push = IpcPushSocket(endpoint)
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
    push = IpcPushSocket(endpoint)
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
        await until(lambda: bool(caplog.records))
        assert os.strerror(errno.EMFILE) in caplog.text
        # It does not spin: of these rounds, many fall into one pause.
        await rounds(1000)
        assert len(caplog.records) < 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await pull.until(1) == [b"hi"]
    pull.socket.close()
    client.close()
