"""Points in the Python half at which a schedule's faults strike, put there from outside.

The package has no code for it: where a switchboard is on, ``install`` puts a point before and one after each
method of ``SEAMS`` (``edge.put`` and ``edge.put.after``). The Rust half's own points are in ``rust/faults``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from sglang_omni._core import fault_point, faults_on
from sglang_omni.pipeline.transport.ipc.sockets import IpcPushSocket
from sglang_omni.pipeline.transport.ipc.zmtp import frame_header

# By point, the method that it is at.
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
    "stage.compute": "campaign.stages:CampaignScheduler.compute",
    "process.start": "sglang_omni.pipeline.stage.runtime:Stage.start",
    "thread.start": "sglang_omni.pipeline.stage.scheduler_threads:SchedulerThreads.start",
    "supervisor.launch": "sglang_omni.pipeline.processes.local:LocalLauncher.launch",
    "coordinator.stage_down": "sglang_omni.pipeline.coordinator.coordinator:Coordinator.stage_down",
    "coordinator.end": "sglang_omni.pipeline.coordinator.coordinator:Coordinator._end",
}


def install() -> None:
    """Puts a point before and after each method. Does nothing without a switchboard."""
    if not faults_on():
        return
    for point, place in SEAMS.items():
        module, _, path = place.partition(":")
        owner, _, method = path.rpartition(".")
        cls = getattr(importlib.import_module(module), owner)
        setattr(cls, method, _with_points(point, getattr(cls, method)))


def _with_points(point: str, method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(self: Any, *args: Any, **options: Any) -> Any:
            if (action := fault_point(point)) is not None:
                _act(action, self, *args)
            result = await method(self, *args, **options)
            _act(fault_point(f"{point}.after"), self, *args)
            return result

        return call_async

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        _act(fault_point(point), self, *args)
        result = method(self, *args, **options)
        _act(fault_point(f"{point}.after"), self, *args)
        return result

    return call


def _act(action: str | None, owner: Any, *args: Any) -> None:
    """Does what the switchboard leaves to the site."""
    if action == "partial" and isinstance(owner, IpcPushSocket):
        _send_half(owner, args[0])


def _send_half(socket: IpcPushSocket, message: bytes) -> None:
    """The connection breaks when the kernel has taken half of a message, which is sent again whole."""
    if socket._sock is not None and socket._ready and not socket._queue:
        whole = frame_header(len(message)) + message
        socket._sock.send(whole[: len(whole) // 2])
        socket._lose()
