"""Pipelines whose control plane is tcp://, in real processes: strangers at its ports, processes that move."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from test_mp_runner import chain, running
from waiting import until

from sglang_omni.config import EndpointsConfig
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.local import LocalLauncher
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.pipeline.transport.ipc.zmtp import opening
from sglang_omni.pipeline.transport.keys import RunKeys, secure_client
from sglang_omni.pipeline.transport.tcp.push import TcpPushSocket
from sglang_omni.proto import OmniRequest, StagePayload, SubmitMessage, codec

# A stranger is shown the door before it has said all, or where it takes too long.
CUT_OFF = (ConnectionResetError, BrokenPipeError)


class Traffic:
    """Requests without a pause, of which none may fail."""

    def __init__(self, runner: MultiProcessPipelineRunner) -> None:
        self.served = 0
        self._coordinator = runner.coordinator
        self._expected = runner.process_ids
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            result = await self._coordinator.submit(f"request {self.served}", {})
            assert result["seen"] == self._expected
            self.served += 1

    async def goes_on(self) -> None:
        served = self.served
        await until(lambda: self.served > served + 20 or self._task.done())
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


def plain(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def peer(endpoint: str, keys: RunKeys | None, server_key: str = "") -> zmq.Socket[bytes]:
    client = zmq.Context.instance().socket(zmq.DEALER)
    client.linger = 0
    if keys is not None:
        secure_client(client, keys)
        if server_key:
            client.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    client.connect(endpoint)
    return client


async def test_strangers_at_the_ports_stop_no_request(tmp_path: Path) -> None:
    config = chain(tmp_path, "a", "b")
    config.endpoints = EndpointsConfig(scheme="tcp", base_path=str(tmp_path / "run"))
    async with running(config) as runner:
        plan = runner.plan
        assert set(plan.endpoints) == {"completion", "abort", "stage_a", "stage_b"}
        traffic = Traffic(runner)
        await traffic.goes_on()
        forged = codec.pack(SubmitMessage("forged", StagePayload("forged", OmniRequest({}), {})).to_dict())
        for endpoint in plan.endpoints.values():
            port = int(endpoint.rpartition(":")[2])
            with ExitStack() as open_ones:
                for said in (
                    os.urandom(100_000),
                    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                    b"\xff" + bytes(8) + b"\x7f\x03",
                    opening("PUSH") + b"\x04\x00\x00\x00\x00\x00\x00\x00\xff" + forged,
                ):
                    stranger = open_ones.enter_context(plain(port))
                    with suppress(*CUT_OFF):
                        stranger.sendall(said)
                slow = [open_ones.enter_context(plain(port)) for _ in range(250)]
                for byte in b"\xff\x00\x00":
                    for stranger in slow:
                        with suppress(*CUT_OFF):
                            stranger.send(bytes([byte]))
                    await traffic.goes_on()
                others = RunKeys.generate()
                for keys, server_key in ((None, ""), (others, ""), (others, plan.keys.public)):
                    client = open_ones.enter_context(peer(endpoint, keys, server_key))
                    with suppress(zmq.Again):  # cut off already, and libzmq does not try again
                        client.send(forged, zmq.NOBLOCK)
                await traffic.goes_on()
        await traffic.stop()
        assert runner.coordinator.health()["down_stages"] == {}


MODULE = """
import dataclasses, pathlib
pathlib.Path({marker!r}).touch()
@dataclasses.dataclass
class Trojan:
    x: int = 0
"""


async def test_a_peer_with_the_keys_gets_nothing_run_or_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "imported"
    (tmp_path / "trojan_of_a_test.py").write_text(MODULE.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    from trojan_of_a_test import Trojan

    class Pickled:
        def __reduce__(self) -> tuple:
            return Path(marker).touch, ()

    payload = StagePayload("forged", OmniRequest({"x": Trojan()}), {})
    forged = codec.pack(SubmitMessage("forged", payload).to_dict())
    marker.unlink()
    config = chain(tmp_path, "a", "b")
    config.endpoints = EndpointsConfig(scheme="tcp", base_path=str(tmp_path / "run"))
    async with running(config) as runner:
        plan = runner.plan
        traffic = Traffic(runner)
        endpoint = plan.endpoints["stage_a"]
        push = TcpPushSocket(endpoint, plan.keys)
        for frame in (forged, pickle.dumps(Pickled()), codec.pack(pickle.dumps(Pickled())), b"", b"\xc1"):
            await push.send(frame)
        await until(lambda: not push._kept)  # all were taken
        await traffic.goes_on()
        assert not marker.exists()
        assert "trojan_of_a_test:Trojan' is not registered" in capfd.readouterr().err
        push.close()
        await traffic.stop()


class Apart(LocalLauncher):
    """Has processes of this host meet as if each were on a host of its own: over tcp:// alone."""

    host_address = "127.0.0.1"

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        assert all(spec.node is not None for spec in specs)

    def launch(self, ranks: Sequence[ProcessSpec]) -> list[LaunchedProcess]:
        return super().launch([self._apart(spec) for spec in ranks])

    def _apart(self, spec: ProcessSpec) -> ProcessSpec:
        (launch,) = spec.stages
        launch = replace(
            launch,
            endpoints={**launch.endpoints, launch.instance: "tcp://127.0.0.1:*"},
            host_address=None,
            coordinator_endpoint=spec.coordinator_tcp["completion"],
            abort_endpoint=spec.coordinator_tcp["abort"],
            relay_configs={"shm": {}},
            send_over=dict.fromkeys(launch.send_over, "shm"),
            receive_over=dict.fromkeys(launch.receive_over, "shm"),
        )
        return replace(spec, stages=(launch,))


@asynccontextmanager
async def apart(folder: Path, *names: str) -> AsyncIterator[MultiProcessPipelineRunner]:
    """A chain of stages whose endpoints are known to nobody before they are up."""
    config = chain(folder, *names)
    for stage in config.stages:
        stage.node = stage.name
    async with running(config, launcher=Apart()) as runner:
        yield runner


def where_is(runner: MultiProcessPipelineRunner, name: str) -> str:
    assert runner._supervisor is not None
    (process,) = [each for each in runner._supervisor.processes if each.instances == [name]]
    return process.endpoints[name]


async def test_a_process_that_comes_back_on_another_port_is_found_there(tmp_path: Path) -> None:
    async with apart(tmp_path, "a", "b", "c") as runner:
        coordinator, before = runner.coordinator, runner.process_ids
        assert (await coordinator.submit("first", {}))["seen"] == before
        endpoint = where_is(runner, "b")
        assert endpoint.startswith("tcp://127.0.0.1:")
        held = asyncio.create_task(coordinator.submit("held", {"hold": "b"}))
        await until((tmp_path / "b.held").exists)
        waiting = [asyncio.create_task(coordinator.submit(f"waits {i}", {})) for i in range(10)]
        # The entry stage has handed them to b, which works on the first one.
        await until(lambda: coordinator.stage_load()["b"] == 11)
        os.kill(before["b"], 9)
        for request in (held, *waiting):
            with pytest.raises(RuntimeError, match="stage 'b': process 'b' was killed by SIGKILL"):
                await asyncio.wait_for(request, 60)
        (tmp_path / "b.go").touch()
        results = [await asyncio.wait_for(coordinator.submit(f"later {i}", {}), 60) for i in range(20)]
        after = runner.process_ids
        assert all(result["seen"] == after for result in results)
        assert after["b"] != before["b"]
        assert {**after, "b": 0} == {**before, "b": 0}
        assert where_is(runner, "b") != endpoint


async def test_an_entry_stage_that_comes_back_elsewhere_is_found_too(tmp_path: Path) -> None:
    async with apart(tmp_path, "a", "b") as runner:
        before = runner.process_ids
        os.kill(before["a"], 9)
        await until(lambda: "a" in runner.coordinator.health()["down_stages"])
        result = await asyncio.wait_for(runner.coordinator.submit("waits for it", {}), 60)
        assert result["seen"] == runner.process_ids != before
