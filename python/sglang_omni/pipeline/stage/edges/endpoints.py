"""Where the targets of a stage receive: known from the start on its own host, told later for other hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

# A target on another host has an endpoint as soon as it is ready, and no request comes before that: what
# is waited for is the message that says so. Sending fails after that time, and with it the request.
_WAIT_S = 30.0


class TargetEndpoints:
    """Instance of a stage -> its endpoint, empty while that is not known."""

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self._endpoints = dict(endpoints)
        self._changed = asyncio.Event()

    def update(self, endpoints: Mapping[str, str]) -> dict[str, str]:
        """Takes what is known of other hosts, and returns what is new of it.

        Who is on this host keeps its ``ipc://`` endpoint.
        """
        moved = {}
        for instance, endpoint in endpoints.items():
            known = self._endpoints.get(instance, "")
            if known != endpoint and not known.startswith("ipc://"):
                moved[instance] = endpoint
        self._endpoints |= moved
        self._changed.set()
        self._changed = asyncio.Event()
        return moved

    async def of(self, target: str) -> str:
        """The target's endpoint. Raises RuntimeError where none has become known in time."""
        return self._endpoints.get(target) or await self._wait_for(target)

    async def _wait_for(self, target: str) -> str:
        try:
            async with asyncio.timeout(_WAIT_S):
                while not self._endpoints.get(target):
                    await self._changed.wait()
        except TimeoutError:
            raise RuntimeError(
                f"no endpoint of stage {target!r} has become known within {_WAIT_S:g} s: is its process up?"
            ) from None
        return self._endpoints[target]
