"""Servers as users start them: replicas, router, their deaths, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import trustme
from processes import is_alive
from served_process import ServedProcess
from shouting_server import healthy_workers, launch, shout, shouting
from waiting import PATIENCE
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

__all__ = ["launch"]  # the fixture

# Longer than that: what is to end a wait in a test is not its end.
LONG_DRAIN = ("--drain-timeout", "1000")


class Asked(threading.Thread):
    """A request that is under way: it runs in the pipeline, for as long as its prompt makes it."""

    def __init__(self, server: ServedProcess, base_url: str, prompt: str) -> None:
        super().__init__()
        self.base_url, self.prompt = base_url, prompt
        before = running_requests(base_url)
        self.start()
        server.wait_for(lambda: running_requests(base_url) == before + 1, "the request does not run")

    def run(self) -> None:
        self.got = shout(self.base_url, self.prompt)

    def answer(self) -> httpx.Response:
        self.join(PATIENCE)
        return self.got


def running_requests(base_url: str) -> int:
    """Of one replica, or of all behind a router."""
    if httpx.get(f"{base_url}/workers", timeout=PATIENCE).status_code == 404:
        return httpx.get(f"{base_url}/get_load", timeout=PATIENCE).json()["running"]
    listed = httpx.get(f"{base_url}/get_loads", timeout=PATIENCE).json()
    return sum(worker["load"] for worker in listed["workers"])


def test_replica_serves_and_ctrl_c_leaves_nothing(launch):
    server = launch()
    url = server.base_url
    answer = shout(url)
    assert answer.json()["choices"][0]["text"] == "HI"
    info = httpx.get(f"{url}/get_server_info", timeout=PATIENCE).json()
    assert [(p["name"], p["stages"]) for p in info["processes"]] == [("a", ["upper"]), ("b", ["answer"])]
    assert {p.pid for p in psutil.Process(server.process.pid).children()} >= {
        p["pid"] for p in info["processes"]
    }

    # A request that would hang for ever is answered, and stops nothing.
    hanging = Asked(server, url, "hang")
    server.children()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(PATIENCE) == 0
    assert_refused(hanging.answer())
    server.assert_nothing_left()
    assert list((server.log.parent / "run").iterdir()) == []


def test_a_replica_lets_requests_end_and_refuses_new_ones(launch):
    server = launch(*LONG_DRAIN)
    url = server.base_url
    waiting, hanging = Asked(server, url, "wait"), Asked(server, url, "hang")
    server.children()
    # As the end of a terminal has it: to all processes of the group.
    os.killpg(server.process.pid, signal.SIGHUP)
    server.wait_for(
        lambda: "waiting up to 1000 s for 2 requests" in server.lines("[server]"), "it does not drain"
    )
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        refused = client.post("/v1/completions", json={"prompt": "hi"})
        assert_refused(refused)
        assert refused.headers["connection"] == "close"
        health = client.get("/health")
        assert health.status_code == 503
        assert (health.headers["retry-after"], health.headers["connection"]) == ("1", "close")
    assert_drains(server, waiting, hanging)


def test_a_replica_lets_sessions_end(launch):
    server = launch(*LONG_DRAIN)
    url = server.base_url.replace("http://", "ws://") + "/v1/realtime"
    with connect(url, proxy=None) as ending, connect(url, proxy=None) as staying:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(
            lambda: "waiting up to 1000 s for 2 WebSockets" in server.lines("[server]"),
            "it does not drain",
        )
        with pytest.raises(InvalidStatus) as refused:
            connect(url, proxy=None)
        assert refused.value.response.status_code == 503
        for session in (ending, staying):
            assert json.loads(session.recv(PATIENCE))["type"] == "session.created"
            session.send(json.dumps({"type": "session.update", "session": {"instructions": "Be brief."}}))
            assert json.loads(session.recv(PATIENCE))["type"] == "session.updated"
        ending.close()
        # A second signal ends what does not end by itself.
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            staying.recv(PATIENCE)
        assert closed.value.rcvd.code == 1012
        assert server.process.wait(PATIENCE) == 0
    server.assert_nothing_left()


def assert_drains(server: ServedProcess, waiting: Asked, hanging: Asked) -> None:
    """What can end does; what cannot is ended by a second signal."""
    (server.log.parent / "release").touch()
    assert waiting.answer().json()["choices"][0]["text"] == "WAIT"
    server.process.send_signal(signal.SIGTERM)
    assert_refused(hanging.answer())
    assert server.process.wait(PATIENCE) == 0
    server.assert_nothing_left()


def assert_refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "service_unavailable")
    assert "shutting down" in error["message"]


def takes_connections(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((urlsplit(url).hostname, urlsplit(url).port)) == 0


def test_stage_that_cannot_start_ends_the_launch_with_its_error(launch):
    for flags in ((), ("--dp-size", "2")):
        server = launch(*flags, answer="broken")
        assert server.process.wait(PATIENCE) == 1
        log = server.text
        # The process's traceback, and the launcher's own words: they end with what is wrong.
        says = "launch_server: Process 'b' exited with status 1: FileNotFoundError: no weights in /nowhere\n"
        assert says in log
        assert 1 <= log.count("Traceback") <= max(1, len(flags)), log


def test_fleet_outlives_its_members_and_lets_requests_end(launch):
    server = launch("--dp-size", "2", "--policy", "round_robin", "--router-expose-worker-urls", *LONG_DRAIN)
    url = server.base_url
    workers = {shout(url).headers["x-sglang-omni-worker"] for _ in range(4)}
    assert len(workers) == 2
    flushed = httpx.post(f"{url}/flush_cache", timeout=PATIENCE)
    assert (flushed.status_code, set(flushed.json()["successful"])) == (200, workers)

    (replica, _), (router,) = server.children("launch_server"), server.children("router_process")
    below = replica.children(recursive=True)
    assert len(below) >= 2
    replica.kill()
    server.wait_for(lambda: not any(map(is_alive, below)), "the replica's stages outlived it")
    assert shout(url).status_code == 200
    server.wait_for(lambda: len(server.children("launch_server")) == 2, "no new replica")
    # Until its next probe the router may hold the dead one for healthy: what counts is who serves.
    server.wait_for(
        lambda: {shout(url).headers["x-sglang-omni-worker"] for _ in range(4)} == workers,
        "the new replica is not used",
    )

    router.kill()
    router.wait()
    server.wait_for(lambda: healthy_workers(url) == 2, "no new router")
    waiting, hanging = Asked(server, url, "wait"), Asked(server, url, "hang")
    server.children()
    server.process.send_signal(signal.SIGTERM)
    server.wait_for(lambda: not takes_connections(url), "it does not drain")
    assert_drains(server, waiting, hanging)


def test_ports_of_a_fleet_stay_its_own_until_ctrl_c(launch):
    server = launch("--dp-size", "2", "--router-policy", "random")
    url = server.base_url
    listed = httpx.get(f"{url}/workers", timeout=PATIENCE).json()
    assert listed["policy"] == "random"
    addresses = [urlsplit(worker["url"]) for worker in listed["workers"]] + [urlsplit(url)]
    # As long as its member is down, a port is held by nobody who answers, and by nobody else either.
    for mark in ("launch_server", "router_process"):
        for member in server.children(mark):
            member.kill()
            member.wait()
    for address in addresses:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((address.hostname, address.port))
    server.wait_for(lambda: healthy_workers(url) == 2, "the fleet does not come back")
    assert shout(url).status_code == 200

    server.children()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(PATIENCE) == 0
    server.assert_nothing_left()
    assert list((server.log.parent / "run").iterdir()) == []


@pytest.mark.parametrize("flags", [(), ("--dp-size", "2")], ids=["server", "fleet"])
def test_a_port_is_in_use_while_another_server_still_loads(launch, tmp_path, flags, held_port):
    first = launch(*flags, "--port", str(held_port), answer="never")
    first.wait_for(lambda: first.children("-c" if not flags else "launch_server"), "nothing starts")
    other = tmp_path / "other"
    other.mkdir()
    with shouting(other, *flags, "--port", str(held_port)) as second:
        assert second.process.wait(PATIENCE) == 1
    log = second.text
    assert f"port {held_port} of 127.0.0.1 is in use; give another one, or 0 for a free one" in log
    assert "Traceback" not in log
    assert first.process.poll() is None


def test_fleet_behind_tls_and_a_key(launch, tmp_path):
    issued = trustme.CA().issue_cert("127.0.0.1")
    pem = tmp_path / "router.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
    files = ("--router-tls-cert-path", str(pem), "--router-tls-key-path", str(pem))
    url = launch("--dp-size", "2", *files, "--router-api-key", "secret").base_url
    assert url.startswith("https://")
    request = {"url": f"{url}/v1/completions", "json": {"prompt": "hi"}, "timeout": PATIENCE}
    assert httpx.post(**request, verify=False).status_code == 401
    answer = httpx.post(**request, verify=False, headers={"Authorization": "Bearer secret"})
    assert answer.json()["choices"][0]["text"] == "HI"


def test_ctrl_c_ends_a_fleet_that_is_still_starting(launch):
    server = launch("--dp-size", "2", answer="never")
    server.wait_for(lambda: len(server.children("launch_server")) == 2, "no replica starts")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(PATIENCE) == 130
    assert "Traceback" not in server.text
    server.assert_nothing_left()


def test_ctrl_c_ends_a_server_that_is_still_loading(launch):
    server = launch(answer="never")
    server.wait_for(lambda: len(server.children("-c")) == 2, "no stage starts")
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.process.wait(PATIENCE) == 130
    assert "Traceback" not in server.text
    server.assert_nothing_left()
    assert list((server.log.parent / "run").iterdir()) == []


def test_replica_that_is_never_healthy_ends_the_launch(launch):
    server = launch("--dp-size", "2", "--start-timeout", "3", answer="never")
    assert server.process.wait(PATIENCE) == 1
    log = server.text
    assert "exited with status 1" in log
    assert "served on" not in log
    server.assert_nothing_left()


def test_killed_launcher_leaves_no_process(launch):
    server = launch("--dp-size", "2")
    assert server.base_url
    assert len(server.children()) == 3
    server.process.kill()
    server.process.wait()
    server.assert_nothing_left()
