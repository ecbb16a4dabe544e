"""Reads of a peer's memory over an engine whose transfers end when the test says so."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import until

from sglang_omni._core import Extents
from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.relay import RelayError, RelayReadError, RelayTimeout
from sglang_omni.relay.one_sided.engine import Source
from sglang_omni.relay.one_sided.relay import OneSidedRelay
from sglang_omni.relay.one_sided.slots import CHECKED_BYTES, HEADER_BYTES, Segment, Slots

NBYTES = 150_000


class _Transfer:
    def __init__(self, engine: _Engine, source: Source, into: Slots, nbytes: int, notify: bytes) -> None:
        self.arguments = engine, source, into, nbytes, notify

    def is_done(self) -> bool:
        engine, source, into, nbytes, notify = self.arguments
        if engine.stuck:
            return False
        part = nbytes // 2
        ctypes.memmove(into.start, source.start, part)
        engine.meanwhile()
        ctypes.memmove(into.start + part, source.start + part, nbytes - part)
        if notify:
            _engines[source.peer["name"]].heard.append(notify)
        return True


class _Engine:
    """Reads memory of this process. Does nothing while it is ``stuck``.

    Attributes:
        meanwhile: Called in the middle of each transfer.
        reads: How many transfers it has begun.
    """

    has_threads = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.stuck = False
        self.broken = False
        self.heard: list[bytes] = []
        self.looks = 0
        self.reads = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.destinations: list[int] = []
        self.registered: set[int] = set()
        _engines[name] = self

    def register(self, segment: Segment) -> None:
        self.registered.add(segment.address)

    def unregister(self, segment: Segment) -> None:
        self.registered.remove(segment.address)

    def address(self) -> dict[str, Any]:
        return {"name": self.name}

    def read(self, source: Source, into: Slots, *, header_only: bool, notify: bytes) -> _Transfer:
        self.reads += 1
        if not header_only:
            self.destinations.append(into.start)
        return _Transfer(self, source, into, HEADER_BYTES + (0 if header_only else source.nbytes), notify)

    def knows(self, source: Source) -> bool:
        return True

    def notifications(self) -> list[bytes]:
        self.looks += 1
        if self.broken:
            raise OSError("no more")
        heard, self.heard = self.heard, []
        return heard

    def close(self) -> None: ...


_engines: dict[str, _Engine] = {}


class _Relay(OneSidedRelay):
    def __init__(self, name: str, timeout_s: float = 60, slot_size_mb: int = 1) -> None:
        super().__init__("fake", name, slot_size_mb, 1, timeout_s, keep_s=60)

    def _make_engine(self) -> _Engine:
        return _Engine(self.engine_id)

    @property
    def engine(self) -> _Engine:
        return _engines[self.engine_id]


@pytest.fixture
def pair() -> Any:
    sender, reader = _Relay("sender"), _Relay("reader")
    yield sender, reader
    sender.close()
    reader.close()


async def write(relay: _Relay, value: int, nbytes: int = NBYTES) -> Any:
    metadata, _ = await relay_io.write_blob(relay, "k", np.full(nbytes, value, np.uint8))
    return metadata


async def read(relay: _Relay, metadata: Any) -> np.ndarray:
    return await relay_io.read_blob(relay, "k", metadata)


async def test_a_destination_given_up_is_used_for_nothing_until_its_transfer_is_over(pair: Any) -> None:
    sender, reader = pair
    reader.engine.stuck = True
    patience, reader._timeout = reader._timeout, 0.2
    with pytest.raises(RelayTimeout, match=r"sender is stopped .* not read within"):
        await read(reader, await write(sender, 1))
    assert reader.usage()["relay_quarantined_reads"] == 1
    reader.engine.stuck = False
    await until(lambda: reader.usage()["relay_quarantined_reads"] == 0)

    reader._timeout = patience
    reader.engine.stuck = True
    late = asyncio.create_task(read(reader, await write(sender, 2)))
    await until(lambda: len(reader.engine.destinations) == 2)
    late.cancel()
    await until(lambda: reader.usage()["relay_quarantined_reads"] == 1)
    reading = asyncio.create_task(read(reader, await write(sender, 3)))
    await until(lambda: len(reader.engine.destinations) == 3)
    first, second, third = reader.engine.destinations
    assert first == second != third
    reader.engine.stuck = False
    assert set((await reading).tolist()) == {3}


async def test_slots_that_went_to_others_while_they_were_read_are_no_payload(pair: Any) -> None:
    sender, reader = pair
    reader.engine.stuck = True
    metadata = await write(sender, 1)
    reading = asyncio.create_task(read(reader, metadata))
    await until(lambda: bool(reader.engine.destinations))
    sender.cleanup("k")
    again = await write(sender, 2)
    assert again["relay_info"]["slots"] == metadata["relay_info"]["slots"]
    reader.engine.stuck = False
    with pytest.raises(RelayReadError, match="not there"):
        await reading
    assert set((await read(reader, again)).tolist()) == {2}


@pytest.mark.parametrize("nbytes", [NBYTES, CHECKED_BYTES, 2 * CHECKED_BYTES])
async def test_a_read_that_meets_the_next_payload_is_no_payload(nbytes: int) -> None:
    sender, reader = _Relay("sender", slot_size_mb=8), _Relay("reader", slot_size_mb=8)

    def announce_another() -> None:
        reader.engine.meanwhile = lambda: None
        sender.cleanup("k")
        slots = sender._out.take(nbytes)
        ctypes.memset(slots.address, 2, nbytes)
        slots.seal(nbytes)
        others.append(slots)

    others: list[Slots] = []
    try:
        metadata = await write(sender, 1, nbytes)
        reader.engine.meanwhile = announce_another
        with pytest.raises(RelayReadError, match="not there"):
            await read(reader, metadata)
        info = metadata["relay_info"]
        assert others.pop().start == info["segment"][0] + info["slots"][0] * info["segment"][1]
    finally:
        sender.close()
        reader.close()


async def test_a_small_payload_takes_one_transfer_and_a_large_one_two(pair: Any) -> None:
    sender, reader = pair
    for nbytes, transfers in ((NBYTES, 1), (2 * CHECKED_BYTES, 2)):
        metadata, before = await write(sender, 1, nbytes), reader.engine.reads
        assert set((await read(reader, metadata)).tolist()) == {1}
        assert reader.engine.reads - before == transfers
        await until(lambda: sender.usage()["relay_held_slots"] == 0)


async def test_what_several_targets_get_is_checked_too(pair: Any) -> None:
    sender, reader = pair
    fan_out = FanOut(sender, np.full(NBYTES, 5, np.uint8))
    written = [(await fan_out.write("k", target))[0] for target in ("a", "b")]
    one, other = (metadata["relay_info"]["checksum"] for metadata in written)
    assert one == other is not None
    for metadata in written:
        assert set((await read(reader, metadata)).tolist()) == {5}


async def test_slots_that_went_back_are_no_payload_either(pair: Any) -> None:
    sender, reader = pair
    metadata = await write(sender, 1)
    sender.cleanup("k")
    with pytest.raises(RelayReadError, match="not there"):
        await read(reader, metadata)


async def test_a_view_keeps_its_slots_and_memory_of_its_own_is_given_up_with_it(pair: Any) -> None:
    sender, reader = pair
    views = [await read(reader, await write(sender, value)) for value in range(1, 12)]
    large = await read(reader, await write(sender, 12, 3 << 20))
    views.append(large)
    assert [set(view.tolist()) for view in views] == [{value} for value in range(1, 13)]
    assert len(reader.engine.registered) > 1
    del large
    views.clear()
    await until(lambda: len(reader.engine.registered) == 1)
    await until(lambda: sender.usage()["relay_held_bytes"] == 0 and len(sender.engine.registered) == 1)


async def test_nothing_is_polled_while_nothing_is_under_way(pair: Any) -> None:
    sender, reader = pair
    for relay in pair:
        relay.cleanup("nothing")
    metadata = await write(sender, 1)
    await read(reader, metadata)
    for engine in (sender.engine, reader.engine):
        quiet = 0
        async with asyncio.timeout(60):
            while quiet < 300:
                before = engine.looks
                await asyncio.sleep(0.002)
                quiet = quiet + 1 if engine.looks == before else 0


async def test_what_a_stranger_says_ends_nothing(pair: Any) -> None:
    sender, reader = pair
    metadata = await write(sender, 1)
    number = metadata["relay_info"]["ticket"]
    said = [b"", b"x", b"-1", b"\xff" * 9, b"9" * 4000, b"%d" % (number + 1), "²".encode()]
    sender.engine.heard += said
    await until(lambda: not sender.engine.heard)
    assert sender.usage()["relay_held_slots"] == 1
    assert set((await read(reader, metadata)).tolist()) == {1}
    await until(lambda: sender.usage()["relay_held_slots"] == 0)


async def test_an_engine_that_fails_closes_the_relay_and_says_so(
    pair: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sender, reader = pair
    reader.engine.stuck = True
    reading = asyncio.create_task(read(reader, await write(sender, 1)))
    await until(lambda: bool(reader.engine.destinations))
    reader.engine.broken = True
    with pytest.raises(RelayError, match="closed"):
        await reading
    with pytest.raises(RelayError, match="closed"):
        await write(reader, 1)
    assert "its engine has failed" in caplog.text


def test_extents_are_shared_by_nobody() -> None:
    extents = Extents(1 << 20)
    taken = [extents.allocate(100_000) for _ in range(10)]
    assert extents.allocate(100_000) is None
    ends = [start + length for start, length in taken]
    assert all(end <= start for end, (start, _) in zip(ends, taken[1:], strict=False))
    extents.release(*taken[3])
    assert extents.allocate(100_000) == taken[3]
