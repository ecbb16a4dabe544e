"""The campaign on real processes: it holds, plays what its seed says, and finds what is broken on purpose."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from campaign import fleet, processes, seams
from waiting import PATIENCE

_CAMPAIGN = Path(__file__).parents[1] / "campaign"
_RUN = _CAMPAIGN / "run_real.py"
# Schedules that once failed.
_KEPT = _CAMPAIGN / "kept"


def campaign(*arguments: str, **environment: str) -> tuple[int, str]:
    """Runs it. Returns its status and what it prints."""
    done = subprocess.run(
        [sys.executable, str(_RUN), *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=4 * PATIENCE,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("file", sorted(_KEPT.iterdir()), ids=lambda file: file.stem)
def test_what_failed_once_holds(file: Path) -> None:
    """A file's name begins with its tier."""
    status, text = campaign(file.name.partition("-")[0], "--events", str(file))
    assert status == 0, text


def test_schedules_on_processes_hold() -> None:
    status, text = campaign("processes", "--schedules", "6", "--seed", "2")
    assert status == 0, text
    assert "6 schedules on processes, 0 broken" in text


def test_schedules_on_a_fleet_hold() -> None:
    status, text = campaign("fleet", "--schedules", "2", "--seed", "2")
    assert status == 0, text


@pytest.mark.long
@pytest.mark.parametrize("tier", ["processes", "fleet"])
def test_half_a_minute_of_schedules_holds(tier: str) -> None:
    status, text = campaign(tier, "--schedules", "1000", "--seconds", "30", "--seed", "3")
    assert status == 0, text


@pytest.mark.parametrize("tier", [processes, fleet])
def test_a_seed_draws_the_same_schedule(tier: object) -> None:
    for number in range(200):
        assert tier.drawn(1, number) == tier.drawn(1, number)  # type: ignore[attr-defined]


def test_what_is_ordered_has_a_point() -> None:
    """A fault at a point that is gone would never strike."""
    table = (Path(__file__).parents[2] / "rust" / "faults" / "src" / "lib.rs").read_text()
    others = {"clock.read", *re.findall(r"^//! \| `([\w.]+)` \|", table, re.M)}
    tables = (
        processes.POINTS,
        processes.SUCCESSORS,
        processes.HERE,
        fleet.SERVER_POINTS,
        fleet.ROUTER_POINTS,
        fleet.SUCCESSOR_POINTS,
    )
    for point in {point for points in tables for point in points}:
        assert point in others or point.removesuffix(".after") in seams.SEAMS, point


# A reader dies with a payload before it.
_DEAD_READER = """[
  {"Strike": {"at": 0.0, "process": "d", "point": "edge.get", "action": "kill", "after": 1, "argument": 1}},
  {"Ask": {"at": 0.1, "value": 38, "size": 300000, "stream": false}}
]"""


@pytest.mark.long
def test_finds_memory_that_is_not_given_back(tmp_path: Path) -> None:
    broken = "from sglang_omni.relay.shm.relay import ShmRelay\nShmRelay.cleanup = lambda self, key: None\n"
    (tmp_path / "broken_cleanup.py").write_text(broken)
    events = tmp_path / "events.json"
    events.write_text(_DEAD_READER)
    status, text = campaign("processes", "--events", str(events))
    assert status == 0, text
    status, text = campaign(
        "processes", "--events", str(events), CAMPAIGN_IMPORTS="broken_cleanup", PYTHONPATH=str(tmp_path)
    )
    assert status == 1
    assert "held bytes" in text
