"""One object for several targets: packed once and, where the relay can, copied once."""

from __future__ import annotations

import asyncio
from typing import Any

from sglang_omni.pipeline.stage.edges import relay_io
from sglang_omni.proto import codec
from sglang_omni.relay.base import Relay, RelayOperation


class FanOut:
    """Writes an object to its targets, each at a time of its own.

    The first write packs and copies it for all. Each target then takes credit of its own edge when it is
    its turn there, so that one without credit holds up only itself. What is written stays until this object
    is gone or the last reader has it, whichever is later. Where the relay cannot hold it, each target's
    write is one as by ``relay_io.write_blob``.

    Args:
        relay: What carries it.
        obj: A StagePayload, a tensor or any object.
    """

    def __init__(self, relay: Relay, obj: Any) -> None:
        self._relay = relay
        self._obj = obj
        self._nbytes = 0
        self._held: Any = None
        self._inline: tuple[dict[str, Any], RelayOperation] | None = None
        self._first: asyncio.Future[None] | None = None

    async def write(self, key: str, target: str) -> tuple[dict[str, Any], RelayOperation]:
        """Send it to a target, to be read by ``read_payload`` or ``read_blob``. As ``write_blob``."""
        if self._first is None:
            self._first = asyncio.get_running_loop().create_future()
            try:
                await self._pack(key, target)
            finally:
                # Where that failed each target finds out for itself.
                self._first.set_result(None)
        else:
            await self._first
        if self._inline is not None:
            return self._inline
        if self._held is None:
            return await relay_io.write_blob(self._relay, key, self._obj, target=target)
        put = await self._relay.put_held(self._held, self._nbytes, key, target)
        return {"relay_info": put.metadata, "nbytes": self._nbytes}, put

    async def _pack(self, key: str, target: str) -> None:
        plan = codec.plan(self._obj)
        self._nbytes = plan.nbytes
        if self._nbytes <= getattr(self._relay, "inline_limit", 0):
            self._inline = await relay_io.write_plan(self._relay, key, plan, target)
        elif getattr(self._relay, "fans_out", False):
            self._held = await self._relay.hold_payload(plan)
        if self._inline is not None or self._held is not None:
            self._obj = None  # A slow target keeps no tensors alive.
