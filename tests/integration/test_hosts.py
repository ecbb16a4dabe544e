"""A pipeline over two hosts, which are network namespaces: requests, broken links, and hosts that end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_processes import HOST_TIMEOUT, NOTICED, USUAL_FILES, Coordinator, Lines, host, two_hosts
from host_stages import expected_digest
from network_namespaces import Network, require_namespaces
from processes import is_running
from relay_peers import require
from waiting import PATIENCE

pytestmark = pytest.mark.long


class Run:
    """A run that tests share; each leaves it as it found it, up on both hosts."""

    def __init__(self, folder: Path, net: Network, coordinator: Coordinator, there: Lines) -> None:
        self.folder = folder
        self.net = net
        self.coordinator = coordinator
        self.there = there
        self._held = 0

    def hold(self, stage: str) -> tuple[str, Path]:
        """A request that is in this stage now, and the file that lets it go on."""
        self._held += 1
        go = self.folder / f"request{self._held}"
        name = self.coordinator.send({"seed": 1, "mib": 1, "hold": stage, "name": go.name})
        deadline = time.monotonic() + PATIENCE
        while not go.with_suffix(".held").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return name, go

    def served(self) -> dict[str, Any]:
        """The answer to a request that crosses to host b and back."""
        result = self.coordinator.result(seed=3, mib=2)
        assert result["sha256"] == expected_digest(3, 2)
        assert result["where"] == os.readlink(f"/proc/{self.there.process.pid}/ns/net")
        return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    require_namespaces()
    require("nixl")
    folder = tmp_path_factory.mktemp("hosts")
    with two_hosts(folder) as (net, coordinator, there):
        yield Run(folder, net, coordinator, there)


def ended(pid: int) -> None:
    """Return when this process has."""
    deadline = time.monotonic() + PATIENCE
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_payloads_and_streams_cross_both_ways(run: Run) -> None:
    asked = [run.coordinator.send({"seed": seed, "mib": 1 + seed}) for seed in range(4)]
    for seed, name in enumerate(asked):
        result = run.coordinator.answer(name)["result"]
        assert result["sha256"] == expected_digest(seed, 1 + seed)
        assert result["where"] == os.readlink(f"/proc/{run.there.process.pid}/ns/net")
        assert result["setting"] == "from the config"
        assert result["files"] > USUAL_FILES


@pytest.mark.parametrize(("cut", "mend"), [("unplug", "plug"), ("link_down", "link_up")])
def test_a_link_that_is_back_in_time_costs_nobody_a_process(run: Run, cut: str, mend: str) -> None:
    before = run.served()["pid"]
    held, go = run.hold("invert")
    getattr(run.net, cut)("b")
    under_way = run.coordinator.send({"seed": 5, "mib": 1})
    go.touch()
    # What is tested is a cut of that length.
    time.sleep(NOTICED)
    getattr(run.net, mend)("b")
    # Before it is, the next cut would prolong this one.
    run.coordinator.logs("Host 'b' is heard of again")
    for name, seed in ((held, 1), (under_way, 5)):
        answer = run.coordinator.answer(name)
        assert "error" in answer or answer["result"]["sha256"] == expected_digest(seed, 1)
    assert run.served()["pid"] == before


def test_a_host_that_is_silent_for_too_long_is_lost_and_back_when_it_is_heard_of_again(run: Run) -> None:
    before = run.served()["pid"]
    held, _ = run.hold("invert")
    run.net.unplug("b")
    why = f"host 'b' was not heard of for {HOST_TIMEOUT:g} s"
    assert why in run.coordinator.answer(held)["error"]
    down = run.coordinator.health()["down_stages"]
    assert down.keys() == {"invert", "chunks"}
    assert all(why in reason for reason in down.values())
    # It ends them by itself: nobody can tell it to.
    ended(before)
    waiting = run.coordinator.send({"seed": 5, "mib": 1})
    run.net.plug("b")
    assert run.coordinator.answer(waiting)["result"]["sha256"] == expected_digest(5, 1)
    assert run.served()["pid"] != before


def test_a_host_that_is_killed_takes_its_own_requests_along_and_no_others(run: Run) -> None:
    before = run.served()["pid"]
    there, _ = run.hold("invert")
    here, go = run.hold("noise")
    run.there.process.kill()
    assert "host 'b' has closed its connection" in run.coordinator.answer(there)["error"]
    ended(before)
    run.there = host(run.net, run.folder)
    run.coordinator.until_all_up()
    go.touch()
    assert run.coordinator.answer(here)["result"]["sha256"] == expected_digest(1, 1)
    assert run.served()["pid"] != before


def test_a_process_that_dies_on_another_host_is_restarted_there(run: Run) -> None:
    before = run.served()["pid"]
    error = run.coordinator.ask(seed=1, mib=1, exit=True)["error"]
    assert "process 'invert' on host 'b' exited with status 7" in error
    run.coordinator.until_all_up()
    assert run.served()["pid"] != before


def test_a_second_host_of_the_same_name_is_refused_and_the_first_goes_on(run: Run) -> None:
    before = run.served()["pid"]
    second = host(run.net, run.folder)
    second.says("a host 'b' has joined already, from 10.83.0.2")
    assert second.process.wait(PATIENCE) == 1
    assert run.served()["pid"] == before


def test_a_host_that_is_stopped_leaves_at_once_and_ends_what_ran_there(run: Run) -> None:
    before = run.served()["pid"]
    held, _ = run.hold("invert")
    run.there.process.send_signal(signal.SIGINT)
    assert "host 'b' has left: it was stopped" in run.coordinator.answer(held)["error"]
    assert run.there.process.wait(PATIENCE) == 0
    ended(before)
    run.there = host(run.net, run.folder)
    run.coordinator.until_all_up()
    run.served()


def test_a_coordinator_that_was_killed_is_waited_for(run: Run) -> None:
    before = run.served()["pid"]
    run.coordinator.process.kill()
    run.coordinator.process.wait()
    run.coordinator = Coordinator(run.net, run.folder, run.coordinator.config)
    assert run.coordinator.answer("start") == {"result": None}
    assert run.served()["pid"] != before
    ended(before)


def test_a_coordinator_can_stop_while_a_host_is_away(run: Run) -> None:
    before = run.served()["pid"]
    run.net.unplug("b")
    run.coordinator.stop()
    # As the host does, once it notices.
    ended(before)


def test_over_mooncake_as_well(tmp_path: Path) -> None:
    require_namespaces()
    require("mooncake")
    with two_hosts(tmp_path, network_relay_backend="mooncake") as (net, coordinator, there):
        run = Run(tmp_path, net, coordinator, there)
        test_payloads_and_streams_cross_both_ways(run)
        test_a_link_that_is_back_in_time_costs_nobody_a_process(run, "unplug", "plug")
