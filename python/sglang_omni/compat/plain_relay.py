"""Relays with only the four plain methods, as the contract allows (docs/contract.md).

Such a relay has ``put_async``, ``get_async``, ``cleanup`` and ``close``, and carries flat uint8 tensors.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from sglang_omni.relay.base import Relay
from sglang_omni.relay.buffers import bytes_of

if TYPE_CHECKING:
    from sglang_omni._core import PayloadPlan
    from sglang_omni.relay.base import RelayOperation

_ABILITIES = ("inline_limit", "packs", "fans_out", "lends", "lends_tensors", "trusted", "device")


class PlainRelay:
    """Declares which abilities a relay of any class has and lacks; all else is the relay's."""

    def __init__(self, relay: Any) -> None:
        self._relay = relay
        for name in _ABILITIES:
            setattr(self, name, getattr(relay, name, getattr(Relay, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relay, name)

    def usage(self) -> dict[str, float]:
        """The relay's numbers for ``/metrics``, if it has any."""
        return self._relay.usage() if hasattr(self._relay, "usage") else {}


def as_relay(relay: Any) -> Relay:
    """``relay`` with every ability declared. Kept for the contract: docs/contract.md, "Communication"."""
    return cast(Relay, relay if isinstance(relay, Relay | PlainRelay) else PlainRelay(relay))


async def write_flat(relay: Relay, key: str, plan: PayloadPlan) -> RelayOperation:
    """Puts a packed payload as one flat tensor."""
    import torch

    flat = torch.empty(plan.nbytes, dtype=torch.uint8)
    if plan.on_device:
        # The thread has the tensor as well, in case the caller is cancelled.
        await asyncio.to_thread(plan.write_to, bytes_of(flat))
    else:
        plan.write_to(bytes_of(flat))
    return await relay.put_async(flat.to(relay.device), request_id=key)


async def read_flat(relay: Relay, key: str, relay_info: Any, nbytes: int) -> Any:
    """Gets a packed payload of ``nbytes`` as a flat array. Leaves nothing under its key."""
    import torch

    flat = torch.empty(nbytes, dtype=torch.uint8, device=relay.device)
    try:
        get = await relay.get_async(metadata=relay_info, dest_tensor=flat, request_id=key)
        await get.wait_for_completion()
    finally:
        relay.cleanup(key)
    return flat.cpu().numpy()
