"""One object over a relay: written under a key, and read with the metadata that writing returned.

It is packed once: the walk that encodes its skeleton notes its tensors, then header, skeleton and tensors are
written in one go to the relay's memory. What a relay can do beyond the four plain methods it declares (see
``relay.base.Relay``). Received tensors are views of one buffer and read-only by contract: to write to one,
copy it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sglang_omni._core import PayloadPlan
from sglang_omni.compat.plain_relay import read_flat, write_flat
from sglang_omni.proto import codec
from sglang_omni.relay.base import Relay, RelayOperation, RelayReadError

# Metadata that ``read`` needs, and the put, which may be waited for after the metadata was sent.
Written = tuple[dict[str, Any], RelayOperation]


class _Done:
    """The put of an object that travels inside its own metadata."""

    is_complete = True

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        """Returns at once."""


async def write(relay: Relay, key: str, obj: Any, target: str | None) -> Written:
    """Writes any object under a key, by the credits of ``target``.

    Raises TypeError or ValueError, with the path of what cannot be encoded, and RelayTimeout if there was no
    room in time.
    """
    return await write_plan(relay, key, codec.plan(obj), target)


async def write_plan(relay: Relay, key: str, plan: PayloadPlan, target: str | None) -> Written:
    """Writes a planned object. Inline metadata does for any target. May raise RelayTimeout."""
    nbytes = plan.nbytes
    if nbytes <= relay.inline_limit:
        packed = await asyncio.to_thread(plan.to_bytes) if plan.on_device else plan.to_bytes()
        metadata: dict[str, Any] = {"inline": packed}
        return metadata, _Done(metadata)
    if relay.packs:
        put = await relay.put_payload(plan, key, target)
    else:
        put = await write_flat(relay, key, plan)
    return {"relay_info": put.metadata, "nbytes": nbytes}, put


async def read(relay: Relay, key: str, metadata: Mapping[str, Any], trusted: bool = True) -> Any:
    """The object that ``write`` wrote under ``key``.

    Unless the metadata and the relay are ``trusted``, it may name only registered classes. Raises
    RelayReadError if the relay does not have it (any more), and ValueError if the bytes are malformed.
    """
    buffer: Any
    match metadata:
        case {"inline": bytes(packed)}:
            # Tensors must be writable memory of their own, which a bytes object is not.
            buffer = bytearray(packed)
        case {"relay_info": relay_info, "nbytes": int(nbytes)} if nbytes >= 0:
            if relay.lends:
                buffer = await relay.get_payload(relay_info)
            else:
                buffer = await read_flat(relay, key, relay_info, nbytes)
        case _:
            raise RelayReadError(f"metadata that no write returns: {metadata!r:.200}")
    return codec.unpack_payload(buffer, trusted=trusted and relay.trusted)
