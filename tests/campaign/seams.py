"""Points in the Python half at which a schedule's faults strike, put there from outside.

The package has no code for it: where a switchboard is on, ``install`` puts a point before and one after each
method or function of ``SEAMS`` (``edge.put`` and ``edge.put.after``). A ``corrupt`` at ``clock.read`` puts
the process's wall clock forward by a month. The Rust half's own points are in ``rust/faults``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import time
from collections.abc import Callable
from typing import Any

from sglang_omni._core import fault_point, faults_on
from sglang_omni.pipeline.transport.ipc.sockets import IpcPushSocket
from sglang_omni.pipeline.transport.ipc.zmtp import frame_header

_MONTH_S = 30 * 86_400.0

# By point, what it is at: a method, or a function by the name under which it is called.
SEAMS = {
    "control.send": "sglang_omni.pipeline.transport.ipc.sockets:IpcPushSocket.send",
    "control.receive": "sglang_omni.pipeline.transport.ipc.sockets:IpcPullSocket._receive",
    "control.take": "sglang_omni.pipeline.transport.ipc.sockets:IpcPullSocket._take",
    "control.connect": "sglang_omni.pipeline.transport.ipc.reconnecting:Reconnecting._connect",
    "edge.put": "sglang_omni.relay.shm.relay:ShmRelay.put_payload",
    "edge.hold": "sglang_omni.relay.shm.relay:ShmRelay.hold_payload",
    "edge.announce": "sglang_omni.pipeline.stage.edges.relayed:RelayedEdge._announce",
    "edge.get": "sglang_omni.relay.shm.relay:ShmRelay.get_payload",
    "edge.cleanup": "sglang_omni.pipeline.stage.edges.relays:EdgeRelays.cleanup",
    "stage.receive": "sglang_omni.pipeline.stage.receiver:ItemReceiver.take",
    "stage.route": "sglang_omni.pipeline.stage.sender:ItemSender.route",
    "stage.abort": "sglang_omni.pipeline.stage.runtime:Stage.abort",
    "stage.progress": "sglang_omni.pipeline.stage.runtime:Stage._report_progress",
    "media.connect": "anyio:connect_tcp",
    "media.receive": "anyio._backends._asyncio:SocketStream.receive",
    "stage.compute": "campaign.stages:CampaignScheduler.compute",
    "stage.load": "sglang_omni.pipeline.processes.child:build_stage",
    "disk.bind": "sglang_omni.pipeline.transport.ipc.listener:IpcListener._bind",
    "disk.spec": "sglang_omni.pipeline.processes.process:_spec_file",
    "disk.lock": "sglang_omni.pipeline.processes.run_dir:_lock",
    "process.start": "sglang_omni.pipeline.stage.runtime:Stage.start",
    "thread.start": "sglang_omni.pipeline.stage.scheduler_threads:SchedulerThreads.start",
    "supervisor.launch": "sglang_omni.pipeline.processes.local:LocalLauncher.launch",
    "coordinator.stage_down": "sglang_omni.pipeline.coordinator.coordinator:Coordinator.stage_down",
    "coordinator.end": "sglang_omni.pipeline.coordinator.coordinator:Coordinator._end",
}


def install() -> None:
    """Puts a point before and after each of them. Does nothing without a switchboard."""
    if not faults_on():
        return
    for point, place in SEAMS.items():
        module, _, path = place.partition(":")
        *cls, name = path.split(".")
        owner = functools.reduce(getattr, cls, importlib.import_module(module))
        setattr(owner, name, _with_points(point, getattr(owner, name)))
    time.time = _stepping(time.time)


def _with_points(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **options: Any) -> Any:
            _act(fault_point(point), *args)
            result = await function(*args, **options)
            _act(fault_point(f"{point}.after"), *args)
            return result

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        _act(fault_point(point), *args)
        result = function(*args, **options)
        _act(fault_point(f"{point}.after"), *args)
        return result

    return call


def _stepping(clock: Callable[[], float]) -> Callable[[], float]:
    ahead_s = 0.0

    def read() -> float:
        nonlocal ahead_s
        if fault_point("clock.read") == "corrupt":
            ahead_s += _MONTH_S
        return clock() + ahead_s

    return read


def _act(action: str | None, *args: Any) -> None:
    """Does what the switchboard leaves to the site."""
    if action == "partial" and isinstance(args[0], IpcPushSocket):
        _send_half(args[0], args[1])


def _send_half(socket: IpcPushSocket, message: bytes) -> None:
    """The connection breaks when the kernel has taken half of a message, which is sent again whole."""
    if socket._sock is not None and socket._ready and not socket._queue:
        whole = frame_header(len(message)) + message
        socket._sock.send(whole[: len(whole) // 2])
        socket._lose()
