"""Calls over WebRTC where no datagram gets from client to server: through a TURN server that both reach."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_namespaces import Network, network, require_namespaces
from program_lines import Lines
from shouting_server import CONFIG, HERE

pytestmark = pytest.mark.long
CREDENTIALS = "omni of-this-test"


@pytest.fixture
def net() -> Iterator[Network]:
    require_namespaces()
    if shutil.which("turnserver") is None:
        pytest.fail("these tests need a TURN server: `make system-packages`, or apt-get install coturn")
    with network("server", "client", "turn") as made:
        for host, other in (("server", "client"), ("client", "server")):
            rule = [
                "ip",
                "rule",
                "add",
                "pref",
                "10",
                "ipproto",
                "udp",
                "to",
                made.address(other),
                "blackhole",
            ]
            assert made.popen(host, rule).wait() == 0
        yield made


def started(net: Network, host: str, command: list[str], **variables: str) -> Lines:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), **variables}
    return Lines(
        net.popen(
            host,
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        )
    )


def turn_server(net: Network, folder: Path) -> None:
    user = CREDENTIALS.replace(" ", ":")
    options = ["--listening-ip", net.address("turn"), "--relay-ip", net.address("turn"), "--user", user]
    options += ["--lt-cred-mech", "--realm", "test", "--no-tls", "--no-dtls", "--no-cli", "--no-tcp-relay"]
    files = ["--log-file", "stdout", "--pidfile", str(folder / "turn.pid"), "--db", str(folder / "turn.db")]
    started(net, "turn", ["turnserver", "-n", "-v", *options, *files]).says("UDP listener opened")


def serving(net: Network, folder: Path, *flags: str, credentials: str) -> Lines:
    config = folder / "pipeline.yaml"
    config.write_text(CONFIG.format(folder=folder, answer="answer"))
    command = [sys.executable, "-m", "sglang_omni.launch_server", "--config", str(config)]
    command += ["--host", net.address("server"), "--port", "8000", *flags]
    return started(net, "server", command, SGLANG_OMNI_TURN_CREDENTIALS=credentials)


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_call_to_a_fleet_goes_through_the_relay(net: Network, tmp_path: Path, transport: str) -> None:
    turn_server(net, tmp_path)
    url = f"turn:{net.address('turn')}:3478?transport={transport}"
    server = serving(net, tmp_path, "--dp-size", "2", "--ice-server", url, credentials=CREDENTIALS)
    server.says("replicas are served on")
    caller = [sys.executable, str(HERE / "relayed_caller.py"), f"http://{net.address('server')}:8000"]
    reported = json.loads(started(net, "client", caller).until(lambda line: line.startswith("{")))
    assert f" {net.address('turn')} " in next(
        line for line in reported["answer"].splitlines() if " typ relay" in line
    )
    assert reported["hertz"] == pytest.approx(440, abs=5)


def test_a_relay_that_refuses_is_in_the_log(net: Network, tmp_path: Path) -> None:
    turn_server(net, tmp_path)
    url = f"turn:{net.address('turn')}:3478"
    server = serving(net, tmp_path, "--ice-server", url, credentials="omni wrong")
    server.says("is served on")
    caller = [sys.executable, str(HERE / "relayed_caller.py"), f"http://{net.address('server')}:8000"]
    started(net, "client", caller)
    assert f"{url} gave a call no relay" in server.says("WARNING")
    assert "wrong" not in "".join(server.seen)
