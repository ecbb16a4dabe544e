"""Metadata that lies and garbage on every port: an error, nothing out of bounds, and service goes on."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import random
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from relay_peers import BACKENDS, MIB, Peer, PeerError, block, make_relay, pattern, require
from waiting import PATIENCE, until

from sglang_omni.pipeline import relay_io
from sglang_omni.relay import RelayError
from sglang_omni.relay import bind_guard as exposure
from sglang_omni.relay.one_sided.slots import HEADER_BYTES

pytestmark = pytest.mark.long

WITH_ENGINE = ("nixl", "mooncake")


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return request.param


@pytest.fixture(scope="module")
def peer(backend: str) -> Iterator[Peer]:
    peer = Peer(backend)
    yield peer
    assert peer.close() == 0


@pytest.fixture(scope="module")
def others_ports(backend: str) -> set[int]:
    """Those at which something else in this process listens, and perhaps not for much longer."""
    return _listening()


@pytest.fixture(scope="module")
def relay(backend: str, others_ports: set[int]) -> Iterator[Any]:
    # A lie that sends a read nowhere is found out by the deadline alone.
    relay = make_relay(backend, "here", timeout_s=3)
    yield relay
    relay.close()


def _changed(value: Any, draw: random.Random) -> Any:
    """Something else of the same kind, or not even that."""
    odd = [
        None,
        -1,
        0,
        1 << 40,
        (1 << 63) - 1,
        1 << 63,
        1 << 70,
        "",
        "x" * 50,
        b"",
        b"\xff" * 40,
        [],
        {},
        [1] * 9,
    ]
    match value:
        case bool() | None:
            return draw.choice(odd)
        case int():
            return draw.choice([value + 1, value - 1, value * 2, value ^ (1 << draw.randrange(62)), *odd])
        case str():
            return draw.choice([value + "x", value[:-1], value.swapcase(), *odd])
        case bytes() if value:
            data = bytearray(value)
            for _ in range(draw.randrange(1, 9)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            return draw.choice([bytes(data), bytes(data), value[: draw.randrange(len(value))], *odd])
        case list() if value:
            place = draw.randrange(len(value))
            return [*value[:place], _changed(value[place], draw), *value[place + 1 :]]
        case dict() if value:
            key = draw.choice(list(value))
            if draw.random() < 0.1:
                return {name: entry for name, entry in value.items() if name != key}
            return {**value, key: _changed(value[key], draw)}
    return draw.choice(odd)


async def test_metadata_that_lies_is_an_error_of_its_own(relay: Any, peer: Peer) -> None:
    draw = random.Random(7)
    lies = 0
    for _ in range(40):
        true = await peer("write", "k", pattern(1, 200_000))
        lie = {**true, "relay_info": _changed(true["relay_info"], draw)}
        try:
            got = await asyncio.wait_for(relay_io.read_blob(relay, "k", lie), PATIENCE)
        except (RelayError, ValueError, MemoryError):
            lies += 1
            await peer("cleanup", "k")
            continue
        # What was changed said nothing about where or how much: then the payload is the true one.
        assert np.array_equal(got, pattern(1, 200_000))
    assert lies > 10
    metadata = await peer("write", "l", pattern(2, 200_000))
    assert np.array_equal(await relay_io.read_blob(relay, "l", metadata), pattern(2, 200_000))


async def test_sizes_that_lie_read_nothing_that_was_not_announced(
    backend: str, relay: Any, peer: Peer
) -> None:
    secret = await peer("write", "secret", pattern(3, 500_000))
    for nbytes in (199_000, 201_000, 600_000, 3 * MIB, 1 << 33, 1 << 62):
        metadata = await peer("write", "k", pattern(4, 200_000))
        info = metadata["relay_info"]
        lie = {**info, "nbytes": nbytes}
        if backend == "shm":
            lie = {**info, "place": [*info["place"][:2], nbytes, *info["place"][3:]]}
        if backend in WITH_ENGINE:
            lie["slots"] = [info["slots"][0], -(-(nbytes + 64) // 65536)]
        with pytest.raises((RelayError, ValueError)):
            await relay_io.read_blob(relay, "k", {**metadata, "relay_info": lie})
        await peer("cleanup", "k")
    assert np.array_equal(await relay_io.read_blob(relay, "s", secret), pattern(3, 500_000))


async def test_places_that_lie_are_not_read(backend: str, relay: Any, peer: Peer) -> None:
    if backend not in WITH_ENGINE:
        return  # Its metadata names no address.
    true = await peer("write", "k", pattern(5, 200_000))
    address, slot_bytes, slots = true["relay_info"]["segment"]
    nbytes = slot_bytes * slots
    places = [
        [address + nbytes, slot_bytes, slots],
        [address - nbytes, slot_bytes, slots],
        [address + 8, slot_bytes, slots],
        [4096, slot_bytes, slots],
        [1 << 46, slot_bytes, slots],
    ]
    for place in places:
        lie = {**true["relay_info"], "segment": place, "slots": [slots - 4, 4]}
        with pytest.raises(RelayError):
            await relay_io.read_blob(relay, "k", {**true, "relay_info": lie})
    # A reader that has been lied to is done with the payload.
    true = await peer("write", "k", pattern(5, 200_000))
    assert np.array_equal(await relay_io.read_blob(relay, "k", true), pattern(5, 200_000))


@pytest.mark.parametrize(
    ("nbytes", "place"),
    [(200_000, HEADER_BYTES + 150_000), (200_000, 8), (2 * MIB, 8)],
    ids=["payload", "header", "header of a large one"],
)
async def test_slots_that_were_written_to_are_no_payload(
    backend: str, relay: Any, peer: Peer, nbytes: int, place: int
) -> None:
    if backend not in WITH_ENGINE:
        return  # Its memory is its own, or written to by nobody but the reader.
    true, put = await relay_io.write_blob(relay, "k", pattern(6, nbytes), target="peer")
    address, slot_bytes, _ = true["relay_info"]["segment"]
    written = ctypes.c_uint8.from_address(address + true["relay_info"]["slots"][0] * slot_bytes + place)
    written.value ^= 0x10
    with pytest.raises(PeerError, match="is not there"):
        await peer("read", "k", true)
    await put.wait_for_completion(PATIENCE)
    true, _ = await relay_io.write_blob(relay, "k", pattern(6, nbytes), target="peer")
    assert np.array_equal(await peer("read", "k", true), pattern(6, nbytes))


async def test_garbage_on_its_ports_does_not_disturb_a_relay(
    backend: str, others_ports: set[int], relay: Any, peer: Peer
) -> None:
    await relay_io.read_blob(relay, "k", await peer("write", "k", block(1)))
    metadata, _ = await relay_io.write_blob(relay, "k", block(1), target="peer")
    await peer("read", "k", metadata)
    draw = random.Random(11)
    ports = (_listening() - others_ports) | _listening(peer.process.pid)
    assert backend == "shm" or ports
    for port in ports:
        for nbytes in (0, 1, 8, 64, 1000, 20_000):
            await _send(port, draw.randbytes(nbytes))
        await _send(port, b"\xff" * 4096)
        await _send(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with contextlib.AsyncExitStack() as lingering:
        for port in ports:
            for data in (b"", b"\x01", b"sglomni"):
                await lingering.enter_async_context(_linger(port, data))
        await _serves(backend, relay, peer)
    await until(lambda: relay.usage().get("relay_held_bytes", 0) == 0)


async def test_a_closed_relay_listens_no_more_though_its_errors_are_kept(backend: str, peer: Peer) -> None:
    before = _listening()
    relay = make_relay(backend, "closed", timeout_s=3)
    true = await peer("write", "k", pattern(1, 200_000))
    info = true["relay_info"]
    lie = {**info, "segment": [4096, *info["segment"][1:]]} if backend in WITH_ENGINE else {}
    with pytest.raises((RelayError, ValueError)) as kept:
        await relay_io.read_blob(relay, "k", {**true, "relay_info": lie})
    relay.close()
    await peer("cleanup", "k")
    await until(lambda: _listening() <= before)
    del kept


def _listening(pid: int | None = None) -> set[int]:
    """The TCP ports at which a process listens: this one's by default."""
    return {
        connection.laddr.port
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


async def _serves(backend: str, relay: Any, peer: Peer) -> None:
    """Both ways, and to a peer that is new."""
    for value in range(1, 4):
        metadata, put = await relay_io.write_blob(relay, "k", block(value), target="peer")
        assert await peer("read_sum", "k", metadata) == value * MIB
        await put.wait_for_completion(PATIENCE)
        theirs = await peer("write", "k", pattern(value, MIB))
        assert np.array_equal(await relay_io.read_blob(relay, "k", theirs), pattern(value, MIB))
    other = make_relay(backend, "new")
    try:
        theirs = await peer("write", "k", pattern(9, MIB))
        assert np.array_equal(await relay_io.read_blob(other, "k", theirs), pattern(9, MIB))
    finally:
        other.close()


@contextlib.asynccontextmanager
async def _linger(port: int, data: bytes) -> AsyncIterator[None]:
    """A connection that begins to say something and does not go on."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        yield
    finally:
        writer.close()


async def _send(port: int, data: bytes) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(0.02):
                await reader.read(100)
        finally:
            writer.close()


@pytest.mark.parametrize("kind", ["nixl", "mooncake", "nccl"])
def test_no_relay_listens_where_strangers_could_connect(kind: str) -> None:
    require(kind)
    with pytest.raises(ValueError, match=r"8\.8\.8\.8 is a public address.*allow_public=True"):
        make_relay(kind, "public", host="8.8.8.8")


def test_mooncake_refuses_on_a_host_that_has_a_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposure, "own_addresses", lambda: [ipaddress.ip_address("93.184.216.34")])
    with pytest.raises(ValueError, match=r"refuses to listen on '0\.0\.0\.0': 93\.184\.216\.34"):
        make_relay("mooncake", "public")


@pytest.mark.parametrize(
    ("kind", "modules"), [("nixl", ["nixl_cu13._api", "nixl_cu12._api"]), ("mooncake", ["mooncake"])]
)
def test_a_missing_engine_is_reported_as_what_to_run(
    kind: str, modules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'sgl-omni\[{kind}\]'"):
        make_relay(kind, "missing")
