"""One object for several targets: packed once and, if the relay can, copied once."""

from __future__ import annotations

import asyncio
from typing import Any

from sglang_omni.pipeline.stage.edges import relayed
from sglang_omni.pipeline.stage.edges.edge import Written
from sglang_omni.proto import codec
from sglang_omni.relay.base import Relay


class FanOut:
    """Writes an object to its targets, each when its own edge gets to it.

    The first write packs and copies the object for all. Each target then takes credit of its own edge, so
    that a target without credit holds up only itself. The copy stays until this object is gone or its last
    reader has it, whichever is later. A relay that cannot hold it writes it once for each target.

    Args:
        relay: Carries it.
        obj: A StagePayload, a tensor or any object.
    """

    def __init__(self, relay: Relay, obj: Any) -> None:
        self._relay = relay
        self._obj = obj
        self._nbytes = 0
        self._held: Any = None
        self._inline: Written | None = None
        self._first: asyncio.Future[None] | None = None

    async def write(self, key: str, target: str) -> Written:
        """Writes it under a key for one target. Raises what ``relayed.write`` raises."""
        if self._first is None:
            self._first = asyncio.get_running_loop().create_future()
            try:
                await self._pack(key, target)
            finally:
                # If that failed, each target finds out for itself.
                self._first.set_result(None)
        else:
            await self._first
        if self._inline is not None:
            return self._inline
        if self._held is None:
            return await relayed.write(self._relay, key, self._obj, target)
        put = await self._relay.put_held(self._held, self._nbytes, key, target)
        return {"relay_info": put.metadata, "nbytes": self._nbytes}, put

    async def _pack(self, key: str, target: str) -> None:
        plan = codec.plan(self._obj)
        self._nbytes = plan.nbytes
        if self._nbytes <= self._relay.inline_limit:
            self._inline = await relayed.write_plan(self._relay, key, plan, target)
        elif self._relay.fans_out:
            self._held = await self._relay.hold_payload(plan)
        if self._inline is not None or self._held is not None:
            self._obj = None  # A slow target keeps no tensors alive.
