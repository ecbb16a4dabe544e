"""The control plane over real sockets of both kinds: each message, order, backpressure, aborts, bad input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import rounds

from sglang_omni.pipeline.transport.control_plane import (
    ControlPlaneClosed,
    CoordinatorControlPlane,
    StageControlPlane,
    decode_message,
    encode_message,
)
from sglang_omni.pipeline.transport.ipc.sockets import IpcPushSocket
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.pipeline.transport.tcp.push import TcpPushSocket
from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    DataReadyMessage,
    OmniRequest,
    ProfilerStartMessage,
    ProfilerStopMessage,
    ProgressMessage,
    ShutdownMessage,
    StagePayload,
    StatsMessage,
    StreamMessage,
    SubmitMessage,
)
from sglang_omni.supervision.ports import bind

WAIT_S = 60


NAMES = ("completion", "abort", "a", "b", "late")


class Wires:
    """A coordinator's and two stages' control planes, connected."""

    def __init__(self, endpoint: dict[str, str]) -> None:
        self.endpoint = endpoint
        self.keys = RunKeys.generate()
        self.coordinator = CoordinatorControlPlane(
            self.endpoint["completion"], self.endpoint["abort"], keys=self.keys
        )
        self.a = self.stage("a")
        self.b = self.stage("b")

    def stage(self, name: str) -> StageControlPlane:
        return StageControlPlane(
            name, self.endpoint[name], self.endpoint["completion"], self.endpoint["abort"], keys=self.keys
        )


@pytest.fixture(params=["ipc", "tcp"])
async def wires(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Wires]:
    with ExitStack() as held:
        if request.param == "ipc":
            endpoints = {name: f"ipc://{tmp_path}/{name}" for name in NAMES}
        else:
            ports = [held.enter_context(bind("127.0.0.1")).getsockname()[1] for _ in NAMES]
            endpoints = {name: f"tcp://127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)}
        wires = Wires(endpoints)
        await wires.coordinator.start()
        await wires.a.start()
        await wires.b.start()
        yield wires
        wires.a.close()
        wires.b.close()
        wires.coordinator.close()


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, WAIT_S)


REQUEST = OmniRequest({"prompt": "hi"}, params={"seed": 1}, metadata={"task": "chat"})

TO_STAGES = [
    SubmitMessage("r", StagePayload("r", REQUEST, {"raw_inputs": b"\x00\xff"})),
    DataReadyMessage("r", "a", "b", {"slot": 3, "paths": (1, ("x", 2))}),
    DataReadyMessage("r", "a", "b", {"relay_info": {}}, chunk_id=7),
    DataReadyMessage("r", "a", "b", None, is_done=True),
    DataReadyMessage("r", "a", "b", None, error="broken"),
    ShutdownMessage(),
    ProfilerStartMessage("run", "/tmp/{run_id}_{stage}"),
    ProfilerStopMessage("run"),
    ProfilerStopMessage(),
]

TO_COORDINATOR = [
    CompleteMessage("r", "b", True, result={"text": "hello", 1: (2, 3)}),
    CompleteMessage("r", "b", False, error="ValueError: no", error_info={"message": "no", "status": 400}),
    StreamMessage("r", "b", {"text": "h"}, stage_id=1, stage_name="b", modality="text", chunk_id=0),
    ProgressMessage("b", [("r", "b", -2), ("r", "c", 1)], [("r", 0.25, 0.5, 1.5e9)]),
    StatsMessage("b", {"num_running_reqs": 1}),
]


@pytest.mark.parametrize("message", TO_STAGES, ids=lambda m: m.type)
async def test_messages_to_a_stage_arrive_as_they_were(wires: Wires, message: Any) -> None:
    await wires.a.send_to_stage("b", wires.endpoint["b"], message)
    await wires.coordinator.send_to_stage("a", wires.endpoint["a"], message)
    assert await soon(wires.b.recv()) == message
    assert await soon(wires.a.recv()) == message


async def test_messages_from_a_network_are_marked_untrusted(wires: Wires) -> None:
    message = DataReadyMessage("r", "a", "b", None)
    await wires.a.send_to_stage("b", wires.endpoint["b"], message)
    assert (await soon(wires.b.recv())).trusted is not wires.endpoint["b"].startswith("tcp")
    # Which is the receiver's to say: nothing of it is read from the wire.
    assert decode_message(encode_message(DataReadyMessage("r", "a", "b", None, trusted=False))).trusted


@pytest.mark.parametrize("message", TO_COORDINATOR, ids=lambda m: m.type)
async def test_messages_to_the_coordinator_arrive_as_they_were(wires: Wires, message: Any) -> None:
    send = {
        "complete": wires.b.send_complete,
        "stream": wires.b.send_stream,
        "progress": wires.b.send_progress,
        "stats": wires.b.send_stats,
    }
    await send[message.type](message)
    assert await soon(wires.coordinator.recv()) == message


async def test_an_array_in_a_result_arrives(wires: Wires) -> None:
    await wires.b.send_complete(CompleteMessage("r", "b", True, result={"audio": np.arange(4, dtype="f4")}))
    message = await soon(wires.coordinator.recv())
    assert message.result["audio"].dtype == np.float32
    assert message.result["audio"].tolist() == [0, 1, 2, 3]


async def test_one_edge_keeps_its_order_over_many_batches(wires: Wires) -> None:
    count = 3000

    async def send() -> None:
        for i in range(count):
            await wires.a.send_to_stage("b", wires.endpoint["b"], DataReadyMessage(str(i), "a", "b", None))

    sending = asyncio.create_task(send())
    received = [(await soon(wires.b.recv())).request_id for _ in range(count)]
    await soon(sending)
    assert received == [str(i) for i in range(count)]


async def test_a_full_queue_makes_the_sender_wait_and_loses_nothing(wires: Wires) -> None:
    late = wires.stage("late")
    sent = 0

    async def send() -> None:
        nonlocal sent
        for i in range(5000):
            message = DataReadyMessage(str(i), "a", "b", None)
            await wires.a.send_to_stage("b", late.recv_endpoint, message)
            sent += 1

    sending = asyncio.create_task(send())
    await asyncio.wait({sending}, timeout=0.5)
    assert not sending.done()
    assert sent < 5000  # Nobody receives yet.
    await late.start()
    received = [(await soon(late.recv())).request_id for _ in range(5000)]
    await soon(sending)
    late.close()
    assert received == [str(i) for i in range(5000)]


async def test_a_handler_takes_over_from_recv_in_order_and_pauses(wires: Wires) -> None:
    for i in range(10):
        await wires.a.send_to_stage("b", wires.endpoint["b"], DataReadyMessage(str(i), "a", "b", None))
    assert (await soon(wires.b.recv())).request_id == "0"
    await rounds()  # The others have arrived.
    await wires.a.send_to_stage("b", wires.endpoint["b"], DataReadyMessage("10", "a", "b", None))
    taken: list[str] = []

    def take_one(message: Any) -> bool:
        taken.append(message.request_id)
        return False

    wires.b.deliver_to(take_one)
    for i in range(1, 11):
        while len(taken) < i:
            await asyncio.sleep(0)
        await rounds()
        assert taken == [str(n) for n in range(1, i + 1)]
        wires.b.resume()


async def test_malformed_messages_are_dropped_and_reading_goes_on(wires: Wires) -> None:
    endpoint = wires.endpoint["b"]
    push = TcpPushSocket(endpoint, wires.keys) if endpoint.startswith("tcp") else IpcPushSocket(endpoint)
    for frame in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa4type\xa4nope", b"\x81\xa4type\xa5abort"):
        await push.send(frame)
    await push.send(encode_message(ShutdownMessage()))
    assert await soon(wires.b.recv()) == ShutdownMessage()
    push.close()


async def test_aborts_reach_every_stage(wires: Wires) -> None:
    wires.coordinator.broadcast_abort(AbortMessage("r"))
    assert await soon(wires.a.recv_abort()) == AbortMessage("r")
    assert await soon(wires.b.recv_abort()) == AbortMessage("r")


async def test_a_stage_that_starts_late_gets_earlier_aborts(wires: Wires) -> None:
    wires.coordinator.broadcast_abort(AbortMessage("before"))
    await soon(wires.b.recv_abort())
    wires.b.close()
    wires.coordinator.broadcast_abort(AbortMessage("while away"))
    again = wires.stage("late")
    await again.start()
    heard = {(await soon(again.recv_abort())).request_id for _ in range(2)}
    again.close()
    assert heard == {"before", "while away"}


async def test_closing_ends_a_waiting_recv(wires: Wires) -> None:
    waiting = [asyncio.create_task(wires.b.recv()), asyncio.create_task(wires.b.recv_abort())]
    await asyncio.sleep(0)
    wires.b.close()
    for task in waiting:
        with pytest.raises(ControlPlaneClosed):
            await soon(task)


async def test_using_a_control_plane_that_is_not_started_says_so(wires: Wires) -> None:
    idle = wires.stage("a")
    with pytest.raises(RuntimeError, match="stage 'a' is not started"):
        await idle.recv()
    with pytest.raises(RuntimeError, match="not started"):
        await idle.send_complete(CompleteMessage("r", "a", True))
    idle.close()


async def test_a_message_that_cannot_be_encoded_is_the_callers_error(wires: Wires) -> None:
    with pytest.raises((TypeError, ValueError)):
        await wires.b.send_complete(CompleteMessage("r", "b", True, result={"bad": object()}))
    await wires.b.send_complete(CompleteMessage("r", "b", True, result=1))
    assert (await soon(wires.coordinator.recv())).result == 1


async def test_closing_ends_a_send_that_waits(wires: Wires) -> None:
    async def send_without_end() -> None:
        while True:
            await wires.a.send_to_stage("late", wires.endpoint["late"], ShutdownMessage())

    sending = asyncio.create_task(send_without_end())
    await asyncio.wait({sending}, timeout=0.1)
    assert not sending.done()
    wires.a.close()
    with pytest.raises(ControlPlaneClosed):
        await soon(sending)
