"""The edge between processes on one GPU: tensors of that GPU stay where they are (CUDA IPC)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from sglang_omni.pipeline.stage.edges.edge import (
    FailChunk,
    Item,
    OutgoingEdge,
    Payload,
    StreamChunk,
    send_each,
)
from sglang_omni.proto import StagePayload
from sglang_omni.proto.codec import register_type
from sglang_omni.relay.base import Relay
from sglang_omni.relay.shm.cuda_driver import is_cuda_in_use
from sglang_omni.relay.shm.cuda_ipc import CannotLend, is_lendable

logger = logging.getLogger(__name__)

# Tensors deeper than this are copied like any other.
_MAX_DEPTH = 16
_reported: set[str] = set()


@dataclass(frozen=True)
class IpcHandle:
    """Stands for the exported tensor of this number."""

    number: int


register_type(IpcHandle)


class CudaIpcEdge:
    """Exports the tensors of payloads and chunks, and leaves all else to a relayed edge to the same target.

    What several targets get as one object is left to the relayed edge as well, unless it is a chunk.

    Args:
        target: The target's instance.
        relay_to: Returns the relay that exports, which is the relayed edge's; may raise RuntimeError.
        relayed: Carries items with the handles in them, and everything that has no tensors to export.
    """

    def __init__(self, target: str, relay_to: Callable[[str], Relay], relayed: OutgoingEdge) -> None:
        self._target = target
        self._relay_to = relay_to
        self._relayed = relayed

    async def send(self, item: Item) -> None:
        """Raises what the relayed edge raises."""
        if type(item) is StreamChunk:
            relay, target = self._relay_to(self._target), self._target
            chunk, exported = await export_tensors(relay, (item.data, item.metadata), item.request_id, target)
            if exported is not None:
                data, metadata = chunk
                item = replace(item, data=data, metadata=metadata, fan_out=None, exported=exported)
        elif type(item) is Payload and item.fan_out is None:
            payload: StagePayload = item.data
            relay, target = self._relay_to(self._target), self._target
            data, exported = await export_tensors(relay, payload.data, item.request_id, target)
            if exported is not None:
                item = replace(item, data=replace(payload, data=data), exported=exported)
        await self._relayed.send(item)

    async def send_chunks(self, chunks: Iterable[StreamChunk], fail: FailChunk) -> None:
        """One after the other: each has tensors of its own to export."""
        await send_each(self, chunks, fail)


async def export_tensors(
    relay: Relay, data: Any, request_id: str, target: str
) -> tuple[Any, dict[str, Any] | None]:
    """Exports the tensors of this process's GPU in dicts, lists and tuples.

    If that is impossible, the data stay as they are and the reason is logged once.

    Returns:
        The data to write, and what ``import_tensors`` needs beside it; None if nothing is exported.
    """
    if not is_cuda_in_use():
        return data, None
    tensors: list[Any] = []

    def take_out(value: Any) -> Any:
        if not is_lendable(value):
            return value
        tensors.append(value)
        return IpcHandle(len(tensors) - 1)

    outline = _replace(data, take_out)
    if not tensors:
        return data, None
    try:
        if not relay.lends_tensors:
            raise CannotLend(f"the {type(relay).__name__} does not lend tensors")
        exported = await relay.lend_tensors(tensors, request_id, target)
    except CannotLend as error:
        reason = str(error)
        if reason not in _reported:
            _reported.add(reason)
            logger.warning("Tensors for %r are copied although it is on the same GPU: %s", target, reason)
        return data, None
    return (data, None) if exported is None else (outline, exported)


async def import_tensors(relay: Relay, outline: Any, exported: Any) -> Any:
    """The data that ``export_tensors`` was given.

    Raises:
        ValueError: What came is malformed.
        RelayError: The tensors do not exist (any more).
    """
    if not relay.lends_tensors:
        raise ValueError(f"lent tensors came for a {type(relay).__name__}, which does not lend")
    tensors = await relay.borrow_tensors(exported)

    def put_back(value: Any) -> Any:
        if type(value) is not IpcHandle:
            return value
        number = value.number
        if type(number) is not int or not 0 <= number < len(tensors):
            raise ValueError(f"there are {len(tensors)} lent tensors, not one of number {number!r:.50}")
        return tensors[number]

    return _replace(outline, put_back)


def _replace(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """``value`` with its parts changed. A container without a changed part is not copied."""
    changed: Any
    if type(value) is dict and depth < _MAX_DEPTH:
        changed = {key: _replace(item, change, depth + 1) for key, item in value.items()}
        same = all(changed[key] is item for key, item in value.items())
    elif type(value) in (list, tuple) and depth < _MAX_DEPTH:
        changed = type(value)(_replace(item, change, depth + 1) for item in value)
        same = all(new is old for new, old in zip(changed, value, strict=True))
    else:
        return change(value)
    return value if same else changed
