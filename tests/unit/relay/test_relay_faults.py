"""Faults at each point of the shm relay: what is lost, and what comes back."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from sglang_omni._core import ArenaFull, LeaseError, ShmArena, ShmLease, Switchboard

DATA = b"d" * 20_000

Place = tuple[int, int, int, int, int]


@pytest.fixture
def arena() -> ShmArena:
    return ShmArena(1 << 20)


def put(arena: ShmArena) -> Place:
    return arena.put_raw("edge", "key", DATA, 60.0)[0]


def read(arena: ShmArena, place: Place) -> None:
    assert memoryview(ShmLease(arena.name, place)).tobytes() == DATA


def test_a_payload_reaches_the_points_of_both_sides(fault_board: Switchboard, arena: ShmArena) -> None:
    read(arena, put(arena))
    read(arena, put(arena))
    arena.revoke("key")
    arena.revoke_place(put(arena))
    assert {name: state.hits for name, state in fault_board.points().items()} == {
        "relay.allocate": 3,
        "relay.publish": 3,
        "relay.published": 3,
        "relay.connect": 1,
        "relay.serve": 1,
        "relay.open": 2,
        "relay.take": 2,
        "relay.give_back": 2,
        "relay.revoke": 2,
    }


def test_an_edge_is_full_for_no_reason(fault_board: Switchboard, arena: ShmArena) -> None:
    fault_board.arm("relay.allocate", "error", argument=errno.ENOMEM)
    with pytest.raises(ArenaFull, match='edge "edge" has 0 of 1048576 bytes'):
        put(arena)
    read(arena, put(arena))
    assert arena.outstanding() == 0


@pytest.mark.parametrize("point", ["relay.open", "relay.connect", "relay.serve"])
def test_a_sender_that_cannot_be_reached_still_has_the_payload(
    fault_board: Switchboard, arena: ShmArena, point: str
) -> None:
    place = put(arena)
    fault_board.arm(point, "error", argument=errno.ECONNREFUSED)
    with pytest.raises(LeaseError, match="cannot be reached"):
        ShmLease(arena.name, place)
    assert fault_board.points()[point].fired == 1
    read(arena, place)
    assert arena.outstanding() == 0


def test_a_connection_that_the_sender_cuts_is_made_anew(fault_board: Switchboard, arena: ShmArena) -> None:
    place = put(arena)
    fault_board.arm("relay.serve", "drop")
    with pytest.raises(LeaseError, match="cannot be reached"):
        ShmLease(arena.name, place)
    read(arena, place)


def test_a_reader_that_fails_with_its_ticket_in_hand_gives_it_back(
    fault_board: Switchboard, arena: ShmArena
) -> None:
    place = put(arena)
    fault_board.arm("relay.take", "error", argument=errno.ENOMEM)
    with pytest.raises(LeaseError, match="cannot be reached"):
        ShmLease(arena.name, place)
    assert (arena.state(place), arena.outstanding()) == ("returned", 0)


READER = """
import sys
from sglang_omni._core import ShmLease
name, *place = sys.argv[1:]
lease = ShmLease(name, tuple(map(int, place)))
print("taken", flush=True)
del lease
print("given back", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("point", "said", "is_spent"),
    [
        ("relay.open", "", False),
        ("relay.connect", "", False),
        ("relay.take", "", True),
        ("relay.give_back", "taken\n", True),
    ],
)
def test_what_a_killed_reader_had_comes_back(
    tmp_path: Path, fault_board: Switchboard, arena: ShmArena, point: str, said: str, is_spent: bool
) -> None:
    place = put(arena)
    fault_board.arm(point, "kill")
    done = subprocess.run(
        [sys.executable, "-c", READER, arena.name, *map(str, place)],
        env=os.environ | {"SGLANG_OMNI_FAULTS": str(tmp_path / "board")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, said, "")
    if is_spent:
        wait_until(lambda: "relay.reclaimed" in fault_board.points(), "the reader was not missed")
        assert arena.outstanding() == 0
    else:
        read(arena, place)


SENDER = """
import sys
from sglang_omni._core import ShmArena
arena = ShmArena(1 << 20)
print(arena.name, flush=True)
place = arena.put_raw("edge", "key", b"d" * 20_000, 60.0)[0]
print(*place, flush=True)
if sys.argv[1] == "revoke":
    arena.revoke("key")
sys.stdin.read()
"""


@pytest.mark.parametrize("point", ["relay.allocate", "relay.publish", "relay.published", "relay.revoke"])
def test_a_sender_is_killed_at_each_of_its_points(tmp_path: Path, point: str) -> None:
    board = Switchboard.create(tmp_path / "board")
    board.arm(point, "kill")
    done = subprocess.run(
        [sys.executable, "-c", SENDER, point.removeprefix("relay.")],
        env=os.environ | {"SGLANG_OMNI_FAULTS": str(tmp_path / "board")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert len(done.stdout.splitlines()) == (2 if point == "relay.revoke" else 1)


@pytest.mark.parametrize("point", ["relay.serve", "relay.reclaim"])
def test_a_sender_is_killed_by_what_its_readers_do(tmp_path: Path, point: str) -> None:
    board = Switchboard.create(tmp_path / "board")
    board.arm(point, "kill")
    with subprocess.Popen(
        [sys.executable, "-c", SENDER, ""],
        env=os.environ | {"SGLANG_OMNI_FAULTS": str(tmp_path / "board")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as sender:
        try:
            assert sender.stdout is not None
            name, place = sender.stdout.readline().strip(), sender.stdout.readline().split()
            reader = subprocess.run(
                [sys.executable, "-c", READER, name, *place],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert sender.wait(60) == -signal.SIGKILL
            if point == "relay.serve":
                assert "cannot be reached" in reader.stderr
            else:
                assert reader.stdout == "taken\ngiven back\n"
        finally:
            sender.kill()


@pytest.mark.parametrize(
    "point",
    [
        f"relay.{step}"
        for step in (
            "allocate",
            "publish",
            "published",
            "connect",
            "serve",
            "open",
            "take",
            "give_back",
            "revoke",
        )
    ],
)
def test_a_delay_anywhere_loses_nothing(fault_board: Switchboard, arena: ShmArena, point: str) -> None:
    fault_board.arm(point, "delay", argument=20)
    place = put(arena)
    read(arena, place)
    arena.revoke("key")
    gc.collect()
    assert fault_board.points()[point].fired == 1
    assert arena.outstanding() == 0
