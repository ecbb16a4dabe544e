"""Control planes with only the methods that the contract asks for (docs/contract.md).

Such a control plane has ``start``, ``recv``, ``recv_abort``, ``send_to_stage``, ``send_complete``,
``send_stream``, ``close`` and ``recv_endpoint``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from sglang_omni.proto import DataReadyBatchMessage

if TYPE_CHECKING:
    from sglang_omni.proto import (
        AbortMessage,
        CompleteMessage,
        Message,
        ProgressMessage,
        StatsMessage,
        StreamBatchMessage,
        StreamMessage,
    )


class StageLink(Protocol):
    """The control plane of a stage, as the stage uses it. ``StageControlPlane`` documents the methods."""

    recv_endpoint: str

    @property
    def tcp_endpoint(self) -> str | None: ...
    async def start(self) -> None: ...
    def deliver_to(self, handler: Callable[[Message], bool], /) -> asyncio.Task[None] | None:
        """Returns the task that fetches the messages, if there is one: it fails with the control plane."""

    def resume(self) -> None: ...
    def on_lost(self, lost: Callable[[str, Message, str], None], /) -> None: ...
    def move(self, target: str, endpoint: str, /) -> None: ...
    async def recv_abort(self) -> AbortMessage: ...
    async def send_to_stage(self, target: str, endpoint: str, message: Any, /) -> None: ...
    async def send_complete(self, message: CompleteMessage, /) -> None: ...
    async def send_stream(self, message: StreamMessage, /) -> None: ...
    async def send_stream_batch(self, message: StreamBatchMessage, /) -> None: ...
    async def send_progress(self, message: ProgressMessage, /) -> None: ...
    async def send_stats(self, message: StatsMessage, /) -> None: ...
    def close(self) -> None: ...


async def _send_nothing(message: Any) -> None:
    pass


def _ignore(*_: Any) -> None:
    pass


# Methods a control plane may lack -> what stands in for them.
_OPTIONAL = {
    "tcp_endpoint": None,
    "on_lost": _ignore,
    "move": _ignore,
    "send_progress": _send_nothing,
    "send_stats": _send_nothing,
}
# Methods that it may lack and that are made of its others.
_DONE_HERE = ("deliver_to", "resume", "send_stream_batch")


class PolledControlPlane:
    """Completes a control plane: delivers what its ``recv`` returns, and ignores what it cannot carry.

    Liveness is then not tracked, numbers are not shown, and no other host is reached, unless it has the
    methods for that.
    """

    def __init__(self, control_plane: Any) -> None:
        self._control_plane = control_plane
        for name, stand_in in _OPTIONAL.items():
            if not hasattr(control_plane, name):
                setattr(self, name, stand_in)
        if hasattr(control_plane, "deliver_to"):
            self.deliver_to = control_plane.deliver_to  # type: ignore[method-assign]
            self.resume = control_plane.resume  # type: ignore[method-assign]
        if hasattr(control_plane, "send_stream_batch"):
            self.send_stream_batch = control_plane.send_stream_batch  # type: ignore[method-assign]
        self._may_go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control_plane, name)

    def deliver_to(self, handler: Callable[[Message], bool]) -> asyncio.Task[None]:
        """Hands every message to ``handler``, and pauses after one that returns False until ``resume``."""
        return asyncio.get_running_loop().create_task(self._poll(handler))

    def resume(self) -> None:
        self._may_go_on.set()

    async def send_stream_batch(self, message: StreamBatchMessage) -> None:
        for each in message.messages():
            await self._control_plane.send_stream(each)

    async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
        each = message.messages() if isinstance(message, DataReadyBatchMessage) else [message]
        for one in each:
            await self._control_plane.send_to_stage(target, endpoint, one)

    async def _poll(self, handler: Callable[[Message], bool]) -> None:
        while True:
            self._may_go_on.clear()
            if not handler(await self._control_plane.recv()):
                await self._may_go_on.wait()


def as_stage_link(control_plane: Any) -> StageLink:
    """``control_plane`` with all that a stage uses. Kept for the contract."""
    is_complete = all(hasattr(control_plane, name) for name in (*_DONE_HERE, *_OPTIONAL))
    return control_plane if is_complete else cast(StageLink, PolledControlPlane(control_plane))
