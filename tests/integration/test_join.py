"""Who may join a coordinator, and what everybody else is told, on both sides."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from host_processes import environment, pipeline
from processes import hear_hangups
from program_lines import Lines
from waiting import PATIENCE, until

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.hosts import agent as agent_module
from sglang_omni.pipeline.processes.hosts import join_sockets
from sglang_omni.pipeline.processes.hosts.agent import HostAgent
from sglang_omni.pipeline.processes.hosts.join_key import read_or_create_join_key
from sglang_omni.pipeline.processes.hosts.join_sockets import JoinRefused
from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.pipeline.transport.keys import RunKeys, secure_client

KEY = RunKeys.generate()
ADDRESS = "127.0.0.1"


@pytest.fixture(autouse=True)
def _all_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def one_stage(folder: Path, factory: str, **fields: Any) -> PipelineConfig:
    stage = StageConfig(name="there", factory=factory, process="there", node="b", terminal=True)
    options = {"model_path": "m", "endpoints": EndpointsConfig(base_path=str(folder / "run"))}
    return PipelineConfig(stages=[stage], **{**options, **fields})


@asynccontextmanager
async def starting(
    config: PipelineConfig, port: int = 0, **options: Any
) -> AsyncIterator[tuple[asyncio.Task[None], HostsLauncher]]:
    """The start of a pipeline, which waits for its hosts."""
    launcher = HostsLauncher(ADDRESS, port, KEY, **options)
    runner = MultiProcessPipelineRunner(config, launcher=launcher)
    start = asyncio.create_task(runner.start(PATIENCE))
    try:
        await until(lambda: launcher.is_listening or start.done())
        yield start, launcher
    finally:
        start.cancel()
        with suppress(BaseException):
            await start
        await runner.stop()


def host(launcher: HostsLauncher, name: str = "b", key: RunKeys = KEY) -> HostAgent:
    return HostAgent(launcher.endpoint, name, key)


async def refusal(launcher: HostsLauncher, name: str = "b", key: RunKeys = KEY) -> str:
    """Why a host may not join."""
    with pytest.raises(JoinRefused) as refused:
        await asyncio.wait_for(host(launcher, name, key).run(), PATIENCE)
    return str(refused.value)


async def test_a_name_that_no_stage_has_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with starting(pipeline(tmp_path)) as (start, launcher):
        expected = "no stage of the coordinator's config has node 'c'; valid names: 'b'"
        assert await refusal(launcher, "c") == expected
        assert f"Host 'c' (127.0.0.1) may not join: {expected}" in caplog.text
        assert not start.done()


async def test_another_key_is_refused_and_both_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with starting(pipeline(tmp_path)) as (start, launcher):
        assert "hangs up on this join key: copy the coordinator's key file" in await refusal(
            launcher, key=RunKeys.generate()
        )
        await until(lambda: "tried to join" in caplog.text)
        assert "with another key than this one's" in caplog.text
        assert not start.done()


async def test_a_coordinator_that_is_paused_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_sockets, "_HANDSHAKE_MS", 100)
    # As its kernel does, which goes on taking connections.
    with socket.create_server((ADDRESS, 0)) as paused:
        paused.setblocking(False)
        endpoint = f"tcp://{ADDRESS}:{paused.getsockname()[1]}"
        joining = asyncio.create_task(HostAgent(endpoint, "b", KEY).run())
        taken = []
        async with asyncio.timeout(PATIENCE):
            while len(taken) < 5:
                taken.append(await asyncio.get_running_loop().sock_accept(paused))
        await until(lambda: "takes connections, but does not answer" in caplog.text)
        assert not joining.done()
        joining.cancel()
        for connection, _ in taken:
            connection.close()


async def test_what_is_no_coordinator_is_not_waited_for() -> None:
    with zmq.Context.instance().socket(zmq.ROUTER) as stranger:
        port = stranger.bind_to_random_port(f"tcp://{ADDRESS}")
        with pytest.raises(JoinRefused, match=f"what listens at tcp://{ADDRESS}:{port} is no coordinator"):
            await asyncio.wait_for(HostAgent(f"tcp://{ADDRESS}:{port}", "b", KEY).run(), PATIENCE)


async def test_another_version_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "__version__", "0.0.1")
    async with starting(pipeline(tmp_path)) as (start, launcher):
        why = await refusal(launcher)
        assert "it has sgl-omni 0.0.1, and the coordinator has" in why
        assert "install the same on both" in why
        assert why in caplog.text
        assert not start.done()


async def test_a_host_without_the_models_files_cannot_take_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    async with starting(one_stage(tmp_path, "process_factories.collect", model_path=str(model))) as (
        start,
        launcher,
    ):
        # Of the two, only the coordinator has looked.
        model.rmdir()
        why = await refusal(launcher)
        assert f"{model}: not on this host, but on the coordinator's" in why
        await until(lambda: f"Host 'b' has left: {why}" in caplog.text)
        assert not start.done()


async def test_a_host_that_cannot_read_the_config_says_why(tmp_path: Path) -> None:
    config = one_stage(tmp_path, "process_factories.collect")
    config.config_cls = "nowhere.Pipeline"
    async with starting(config) as (start, launcher):
        assert "nowhere" in await refusal(launcher)
        assert not start.done()


async def test_a_factory_that_fails_on_a_host_ends_the_start_with_its_traceback(tmp_path: Path) -> None:
    async with starting(one_stage(tmp_path, "process_factories.broken")) as (start, launcher):
        joined = asyncio.create_task(host(launcher).run())
        with pytest.raises(RuntimeError) as error:
            await start
        assert "Host 'b': Process 'there' exited with status 1" in str(error.value)
        assert "FileNotFoundError: no weights in /nowhere" in str(error.value)
        assert "process_factories.py" in str(error.value)
        joined.cancel()


async def test_a_host_that_is_reported_that_a_run_is_over_joins_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = one_stage(tmp_path, "process_factories.worker_of_request")
    async with starting(config) as (start, launcher):
        agent = host(launcher)
        joined = asyncio.create_task(agent.run())
        await start
    await until(lambda: "has ended the run here: it is over; joining again" in caplog.text)
    port = int(agent.coordinator.rpartition(":")[2])
    # libzmq closes in a thread of its own.
    await until(lambda: is_free(port))
    async with starting(config, port=port) as (start, _):
        await start
        joined.cancel()


def is_free(port: int) -> bool:
    """True if nobody listens there. Old connections do not count, as for the coordinator."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True


async def test_who_does_not_join_in_time_is_named(tmp_path: Path) -> None:
    async with starting(pipeline(tmp_path), join_timeout=0.2) as (start, _):
        with pytest.raises(TimeoutError, match=r"host 'b' has not joined within 0\.2 s"):
            await start


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"\xff" * 100_000,
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + bytes(48) + b"\x04\x19\x05READY",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00CURVE" + bytes(47) + b"\x06" + b"\xff" * 200,
        b"",
    ],
)
async def test_garbage_at_the_port_is_cut_off_and_hosts_still_join(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with starting(one_stage(tmp_path, "process_factories.collect")) as (_, launcher):
        port = int(launcher.endpoint.rpartition(":")[2])
        for _ in range(20):
            # It may be cut off before it has said all.
            with (
                socket.create_connection((ADDRESS, port)) as connection,
                suppress(ConnectionResetError, BrokenPipeError),
            ):
                connection.sendall(garbage)
        joined = asyncio.create_task(host(launcher).run())
        await until(lambda: "has joined from" in caplog.text)
        joined.cancel()


async def test_strangers_do_not_stop_a_coordinator_that_is_busy(tmp_path: Path) -> None:
    async with starting(one_stage(tmp_path, "process_factories.collect")) as (_, launcher):
        port = int(launcher.endpoint.rpartition(":")[2])
        # The loop does nothing meanwhile, with what is told of them.
        for _ in range(2500):
            with socket.create_connection((ADDRESS, port), PATIENCE) as connection:
                connection.settimeout(PATIENCE)
                connection.sendall(b"\0" * 100)
                with suppress(ConnectionResetError):
                    while connection.recv(100):
                        pass


async def test_strangers_connections_leave_files_for_those_of_the_run(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        async with starting(one_stage(tmp_path, "process_factories.collect")):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_host_that_talks_nonsense_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with starting(one_stage(tmp_path, "process_factories.collect")) as (_, launcher):
        with zmq.Context.instance().socket(zmq.DEALER) as dealer:
            secure_client(dealer, KEY)
            dealer.connect(launcher.endpoint)
            frames = (b"", b"\xff", b"{}", b'{"type": "join"}', b'{"type": "report", "processes": 3}')
            for frame in frames:
                dealer.send(frame)
            dealer.send_multipart([b"", b"{}"])
            await until(lambda: caplog.text.count("Dropped a malformed message of a host") == len(frames) + 1)
        joined = asyncio.create_task(host(launcher).run())
        await until(lambda: "has joined from" in caplog.text)
        joined.cancel()


def test_an_address_must_be_this_machines() -> None:
    text = r"'192\.0\.2\.7' is not an address of this machine"
    with pytest.raises(ValueError, match=text):
        HostsLauncher("192.0.2.7", 0, KEY)
    with pytest.raises(ValueError, match=text):
        HostAgent("tcp://127.0.0.1:7000", "b", KEY, "192.0.2.7")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_must_be_one(port: int) -> None:
    # libzmq takes it modulo 65536.
    with pytest.raises(ValueError, match=f"cannot join at port {port}"):
        HostsLauncher(ADDRESS, port, KEY)


@pytest.mark.parametrize(
    "endpoint", ["10.0.0.1:7000", "http://a:1", "tcp://a", "tcp://a:x", "tcp://a:1/b", ""]
)
def test_an_endpoint_must_be_one(endpoint: str) -> None:
    with pytest.raises(ValueError, match="tcp://ADDRESS:PORT is"):
        HostAgent(endpoint, "b", KEY)


async def test_a_port_in_use_is_said_so(tmp_path: Path) -> None:
    with socket.create_server((ADDRESS, 0)) as taken:
        port = taken.getsockname()[1]
        runner = MultiProcessPipelineRunner(pipeline(tmp_path), launcher=HostsLauncher(ADDRESS, port, KEY))
        with pytest.raises(
            RuntimeError, match=rf"cannot listen for hosts at {ADDRESS}:{port}: Address already"
        ):
            await runner.start()


def test_a_host_whose_terminal_is_closed_leaves_in_order(tmp_path: Path) -> None:
    key = tmp_path / "join.key"
    read_or_create_join_key(key)
    command = [sys.executable, "-m", "sglang_omni.launch_host", "--name", "b", "--join-key", str(key)]
    alone = subprocess.Popen(
        [*command, "--coordinator", "tcp://127.0.0.1:1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        text=True,
        preexec_fn=hear_hangups,
    )
    host = Lines(alone)
    host.says("trying on")
    alone.send_signal(signal.SIGHUP)
    host.says("Left, and ended what ran here")
    assert alone.wait(PATIENCE) == 0
