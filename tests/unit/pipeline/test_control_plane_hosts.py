"""Stages that are reached from their own host and from others: two sockets, one queue, late endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from stage_harness import harness, payload
from waiting import until

from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.stage.edges import relayed
from sglang_omni.pipeline.stage.edges.relayed import TargetEndpoints
from sglang_omni.pipeline.transport.control_plane import CoordinatorControlPlane, StageControlPlane
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.pipeline.transport.tcp import push as tcp_push
from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    DataReadyMessage,
    EndpointsMessage,
    Message,
    OmniRequest,
)

KEYS = RunKeys.generate()
HOST = "127.0.0.1"


class Hosts:
    """A coordinator and a stage on one host, and a stage on another: its sockets are all tcp://."""

    def __init__(self, folder: Path) -> None:
        self.local = {name: f"ipc://{folder}/{name}" for name in ("completion", "abort", "here", "near")}
        self.coordinator = CoordinatorControlPlane(
            self.local["completion"], self.local["abort"], host_address=HOST, keys=KEYS
        )

    async def start(self) -> None:
        await self.coordinator.start()
        tcp = self.coordinator.tcp_endpoints
        self.here = self._here("here")
        self.near = self._here("near")
        self.far = StageControlPlane(
            "far", f"tcp://{HOST}:*", tcp["completion"], tcp["abort"], host_address=None, keys=KEYS
        )
        for plane in (self.here, self.near, self.far):
            await plane.start()

    def _here(self, name: str) -> StageControlPlane:
        return StageControlPlane(
            name,
            self.local[name],
            self.local["completion"],
            self.local["abort"],
            host_address=HOST,
            keys=KEYS,
        )

    def close(self) -> None:
        for plane in (self.here, self.near, self.far, self.coordinator):
            plane.close()


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    hosts = Hosts(tmp_path)
    await hosts.start()
    yield hosts
    hosts.close()


def numbered(source: str, count: int) -> list[DataReadyMessage]:
    return [DataReadyMessage(str(i), source, "here", None) for i in range(count)]


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, 60)


async def test_a_stage_is_reached_over_both_of_its_sockets(hosts: Hosts) -> None:
    assert hosts.here.tcp_endpoint is not None
    assert hosts.here.tcp_endpoint.startswith(f"tcp://{HOST}:")
    await hosts.near.send_to_stage("here", hosts.local["here"], DataReadyMessage("r", "near", "here", None))
    await hosts.far.send_to_stage("here", hosts.here.tcp_endpoint, DataReadyMessage("r", "far", "here", None))
    received = {(await soon(hosts.here.recv())).from_stage for _ in range(2)}
    assert received == {"near", "far"}


async def test_the_coordinator_is_reached_over_both_and_its_aborts_reach_both(hosts: Hosts) -> None:
    for plane in (hosts.near, hosts.far):
        await plane.send_complete(CompleteMessage("r", plane.name, True))
    received = {(await soon(hosts.coordinator.recv())).from_stage for _ in range(2)}
    assert received == {"near", "far"}
    hosts.coordinator.broadcast_abort(AbortMessage("r"))
    assert await soon(hosts.near.recv_abort()) == AbortMessage("r")
    assert await soon(hosts.far.recv_abort()) == AbortMessage("r")


async def test_a_full_stage_stops_both_and_then_serves_both(hosts: Hosts) -> None:
    count = 3000
    endpoint_of = {"near": hosts.local["here"], "far": hosts.here.tcp_endpoint}
    planes = {"near": hosts.near, "far": hosts.far}

    async def send(source: str) -> None:
        for message in numbered(source, count):
            await planes[source].send_to_stage("here", endpoint_of[source] or "", message)

    for source in planes:  # Both are connected when it begins.
        await planes[source].send_to_stage("here", endpoint_of[source] or "", numbered(source, 1)[0])
        await soon(hosts.here.recv())
    taken: list[Message] = []

    def take_one(message: Message) -> bool:
        taken.append(message)
        return False

    hosts.here.deliver_to(take_one)
    sending = [asyncio.create_task(send(source)) for source in planes]
    await until(lambda: len(taken) == 1)
    await asyncio.wait(sending, timeout=0.5)
    # Neither gets a second one in, nor rid of all it has.
    assert len(taken) == 1
    assert not any(task.done() for task in sending)
    for expected in range(2, 203):
        hosts.here.resume()
        await until(lambda expected=expected: len(taken) == expected)
    shares = [sum(it.from_stage == source for it in taken) for source in planes]
    assert min(shares) > 50, shares
    hosts.here.deliver_to(lambda message: taken.append(message) or True)
    await until(lambda: len(taken) == 2 * count)
    for source in planes:
        assert [it.request_id for it in taken if it.from_stage == source] == [str(i) for i in range(count)]
    await asyncio.gather(*sending)


async def test_a_message_waits_until_its_targets_endpoint_is_known() -> None:
    async with harness(get_next=lambda request_id, output: "far", endpoints={"far": ""}) as one:
        await one.work("r", payload("r", {"x": 1}))
        for _ in range(20):
            await asyncio.sleep(0)
        assert one.control_plane.sent == []
        one.control_plane.work.put_nowait(
            EndpointsMessage({"far": "tcp://10.0.0.2:7", "u": "tcp://10.0.0.2:8"})
        )
        await one.sends(1)
        assert [it[:2] for it in one.control_plane.sent] == [("far", "tcp://10.0.0.2:7")]


async def test_an_endpoint_that_never_comes_fails_the_request_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relayed, "_ENDPOINT_WAIT_S", 0.05)
    known = TargetEndpoints({"far": "", "near": "ipc:///run/near"})
    with pytest.raises(RuntimeError, match=r"no endpoint of stage 'far' has become known within 0\.05 s"):
        await known.of("far")
    assert known.update({"far": "tcp://h:1", "near": "tcp://h:2"}) == {"far": "tcp://h:1"}
    assert known.update({"far": "tcp://h:1"}) == {}
    assert await known.of("far") == "tcp://h:1"
    assert await known.of("near") == "ipc:///run/near"  # it is on this host


async def test_every_stage_gets_all_endpoints_and_follows_a_moved_one(hosts: Hosts) -> None:
    coordinator = Coordinator("ipc://unused", "ipc://unused", "here", keys=KEYS)
    coordinator.control_plane = hosts.coordinator
    coordinator.register_stage("here", hosts.local["here"])
    coordinator.register_stage("far", "")
    coordinator.register_stage("later", "")
    await coordinator.flush_cache()  # who has no endpoint yet is not told
    assert (await soon(hosts.here.recv())).type == "flush_cache"
    far = hosts.far.tcp_endpoint
    assert far is not None
    coordinator.stages.move({"far": far, "here": hosts.here.tcp_endpoint or ""})
    reported = EndpointsMessage({"far": far, "here": hosts.here.tcp_endpoint or ""})
    assert await soon(hosts.far.recv()) == reported
    assert await soon(hosts.here.recv()) == reported
    moved = StageControlPlane(
        "far", f"tcp://{HOST}:*", hosts.far.coordinator_endpoint, hosts.far.abort_endpoint, keys=KEYS
    )
    hosts.far.close()
    await moved.start()
    assert moved.tcp_endpoint is not None
    coordinator.stages.move({"far": moved.tcp_endpoint})
    # To the new one, over the sender that led to the other; and the one that keeps its ipc:// too.
    received = await soon(moved.recv())
    assert received.endpoints["far"] == moved.tcp_endpoint
    assert await soon(hosts.here.recv()) == received
    moved.close()


async def test_a_request_whose_submission_is_lost_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_push, "UNREACHABLE_S", 0.1)
    gone = StageControlPlane(
        "far", f"tcp://{HOST}:*", f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/a", keys=KEYS
    )
    await gone.start()
    assert gone.tcp_endpoint is not None
    coordinator = Coordinator(f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/a", "far", keys=KEYS)
    coordinator.register_stage("far", gone.tcp_endpoint)
    await coordinator.start()
    gone.close()
    with pytest.raises(
        RuntimeError, match=r"sending to 'far' failed: no peer was reached at tcp://.* for 0\.1 s"
    ):
        await soon(coordinator.submit("r", OmniRequest("x")))
    await coordinator.stop()


async def test_a_request_whose_message_to_a_stage_is_lost_fails() -> None:
    async with harness(get_next=lambda request_id, output: "t") as one:
        message = DataReadyMessage("r", "s", "t", {})
        one.stage._lose("t", message, "no peer was reached")
        failure = await one.failure()
        assert (failure.request_id, failure.error) == ("r", "sending to 't' failed: no peer was reached")
        assert failure.error_info is not None
        assert failure.error_info["status"] == 503
        await one.still_works()


async def test_a_stage_without_keys_cannot_be_reached_from_other_hosts(tmp_path: Path) -> None:
    plane = StageControlPlane(
        "s", f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/a", host_address=HOST
    )
    with pytest.raises(ValueError, match="need the run's keys"):
        await plane.start()
    assert not (tmp_path / "s").exists()
