"""The edge between processes on one GPU: chunks' tensors of that GPU stay where they are (CUDA IPC)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sglang_omni.pipeline.stage.edges.edge import Item, OutgoingEdge, StreamChunk
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
    """Stands in a chunk for the exported tensor of this number."""

    number: int


register_type(IpcHandle)


class CudaIpcEdge:
    """Exports the tensors of chunks, and leaves all else to a relayed edge to the same target.

    Args:
        target: The target's instance.
        relay_to: Returns the relay that exports, which is the relayed edge's; may raise RuntimeError.
        relayed: Carries the chunks with the handles in them, and everything that has no tensors to export.
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
        await self._relayed.send(item)


async def export_tensors(
    relay: Relay, chunk: Any, request_id: str, target: str
) -> tuple[Any, dict[str, Any] | None]:
    """Exports the tensors of this process's GPU in a chunk's dicts, lists and tuples.

    If that is impossible, the chunk stays as it is and the reason is logged once.

    Returns:
        The chunk to write, and what ``import_tensors`` needs beside it; None if nothing is exported.
    """
    if not is_cuda_in_use():
        return chunk, None
    tensors: list[Any] = []

    def take_out(value: Any) -> Any:
        if not is_lendable(value):
            return value
        tensors.append(value)
        return IpcHandle(len(tensors) - 1)

    outline = _replace(chunk, take_out)
    if not tensors:
        return chunk, None
    try:
        if not relay.lends_tensors:
            raise CannotLend(f"the {type(relay).__name__} does not lend tensors")
        exported = await relay.lend_tensors(tensors, request_id, target)
    except CannotLend as error:
        reason = str(error)
        if reason not in _reported:
            _reported.add(reason)
            logger.warning(
                "Stream chunks for %r are copied although it is on the same GPU: %s", target, reason
            )
        return chunk, None
    return (chunk, None) if exported is None else (outline, exported)


async def import_tensors(relay: Relay, outline: Any, exported: Any) -> Any:
    """The chunk that ``export_tensors`` was given.

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
            raise ValueError(f"the chunk has {len(tensors)} lent tensors, not one of number {number!r:.50}")
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
