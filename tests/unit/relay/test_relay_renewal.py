"""Engines that are replaced when their listening sockets are gone."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from sglang_omni.relay import RelayError, RelayReadError
from sglang_omni.relay.one_sided.engine import Source
from sglang_omni.relay.one_sided.listening_fds import listeners, occupy
from sglang_omni.relay.one_sided.renewal import RenewedEngine
from sglang_omni.relay.one_sided.slots import Segment


class _Engine:
    """Listens, and hears what a test tells it."""

    has_threads = False

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.number = self.socket.fileno()
        self.registered: set[int] = set()
        self.heard: list[bytes] = []
        self.is_reading = False
        self.is_closed = False

    def register(self, segment: Segment) -> None:
        self.registered.add(segment.address)

    def unregister(self, segment: Segment) -> None:
        self.registered.remove(segment.address)

    def address(self) -> dict[str, Any]:
        return {"engine": id(self)}

    def read(self, *arguments: Any, **more: Any) -> Any:
        return self

    def knows(self, source: Source) -> bool:
        return True

    def notifications(self) -> list[bytes]:
        heard, self.heard = self.heard, []
        return heard

    def close(self) -> None:
        self.socket.close()
        self.is_closed = True


class _Made(list[_Engine]):
    """Engines in the order in which they were made; no more while ``out_of_files``."""

    out_of_files = False

    def __call__(self) -> _Engine:
        if self.out_of_files:
            raise RelayError("no more files")
        self.append(_Engine())
        return self[-1]


@pytest.fixture
def made() -> _Made:
    return _Made()


def test_the_next_engine_has_the_memory_and_the_one_before_is_heard_of_on(made: _Made) -> None:
    engine = RenewedEngine("the relay", made, served_s=60)
    kept, freed, late = (Segment(1) for _ in range(3))
    engine.register(kept)
    engine.register(freed)
    assert engine.address() == made[0].address()
    made[0].socket.close()
    assert engine.address() == made[1].address() != made[0].address()
    assert engine.address() == made[1].address()
    assert made[1].registered == {kept.address, freed.address}
    engine.register(late)
    engine.unregister(freed)
    engine.unregister(late)
    assert made[0].registered == made[1].registered == {kept.address}
    made[0].heard, made[1].heard = [b"1"], [b"2"]
    assert sorted(engine.notifications()) == [b"1", b"2"]
    engine.close()
    assert [one.is_closed for one in made] == [True, True]


def test_the_one_before_ends_when_it_is_known_to_nobody_and_reads_no_more(made: _Made) -> None:
    engine = RenewedEngine("the relay", made, served_s=0)
    made[0].is_reading = True
    made[0].socket.close()
    engine.address()
    engine.notifications()
    assert not made[0].is_closed
    made[0].is_reading = False
    engine.notifications()
    assert made[0].is_closed
    engine.close()


def test_where_there_can_be_no_other_puts_and_reads_fail_and_the_next_try_again(made: _Made) -> None:
    engine = RenewedEngine("the relay", made, served_s=60)
    source = Source({}, (0, 0, 0), (0, 0), 0, 0, None, 0)
    assert engine.knows(source)
    made[0].socket.close()
    assert not engine.knows(source)  # The read makes another engine, which takes its time.
    made.out_of_files = True
    with pytest.raises(RelayError, match=r"the relay cannot be reached by any peer.*no more files"):
        engine.address()
    with pytest.raises(RelayReadError, match="no more files"):
        engine.read(None, None, header_only=False, notify=b"")  # type: ignore[arg-type]
    made.out_of_files = False
    assert engine.read(None, None, header_only=False, notify=b"") is made[1]  # type: ignore[arg-type]
    engine.close()


def test_a_successor_that_cannot_know_the_memory_is_none(
    made: _Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RenewedEngine("the relay", made, served_s=60)
    engine.register(Segment(1))
    made[0].socket.close()

    def refuse(self: _Engine, segment: Segment) -> None:
        raise MemoryError("not registered")

    with monkeypatch.context() as patch:
        patch.setattr(_Engine, "register", refuse)
        with pytest.raises(RelayError, match="not registered"):
            engine.address()
    assert made[1].is_closed
    assert engine.address() == made[2].address()
    engine.close()


def test_one_that_was_closed_has_no_successor(made: _Made) -> None:
    engine = RenewedEngine("the relay", made, served_s=60)
    engine.close()
    engine.address()
    assert len(made) == 1


def test_a_number_that_was_lost_is_nobodys(made: _Made) -> None:
    before = listeners()
    first = made()
    (lost,) = listeners() - before
    assert lost.fd == first.number
    assert lost.is_there()
    first.socket.close()
    assert not lost.is_there()
    occupy([lost])
    assert os.readlink(f"/proc/self/fd/{lost.fd}") == os.devnull
    second = made()
    assert second.number != first.number
    assert not lost.is_there()
    second.close()
    os.close(lost.fd)
