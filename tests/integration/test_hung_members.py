"""A launched fleet whose replica, stage and router hang, one after the other: each is found and replaced."""

from __future__ import annotations

import signal

import httpx
import pytest
from served_process import ServedProcess
from shouting_server import healthy_workers, launch, shout

pytestmark = pytest.mark.long

__all__ = ["launch"]  # the fixture


def comes_back(server: ServedProcess, url: str, otherwise: str) -> None:
    def is_served() -> bool:
        try:
            return healthy_workers(url) == 2 and shout(url).status_code == 200
        except httpx.TransportError:
            return False

    server.wait_for(is_served, otherwise)


def test_a_fleet_outlives_members_that_hang(launch):
    server = launch("--dp-size", "2", "--heartbeat-timeout", "6")
    url = server.base_url
    comes_back(server, url, "it never served")

    replica = server.children("launch_server")[0]
    replica.send_signal(signal.SIGSTOP)
    server.wait_for(lambda: healthy_workers(url) == 1, "the router does not find it")
    assert shout(url).status_code == 200
    server.wait_for(lambda: not replica.is_running(), "the replica is not ended")
    comes_back(server, url, "the replica does not come back")

    replica = server.children("launch_server")[0]
    stage = next(child for child in replica.children() if child.is_running())
    stage.send_signal(signal.SIGSTOP)
    server.wait_for(lambda: healthy_workers(url) == 1, "its replica does not tell")
    assert shout(url).status_code == 200
    server.wait_for(lambda: not stage.is_running(), "the stage is not ended")

    # While the stage comes back, the router hangs.
    (router,) = server.children("router_process")
    router.send_signal(signal.SIGSTOP)
    server.wait_for(lambda: not router.is_running(), "the router is not ended")
    comes_back(server, url, "the router or the stage does not come back")
    assert replica.is_running()
    log = server.lines("[server]")
    assert "it had not answered for 6 s" in log
    server.children()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0
    server.assert_nothing_left()
