"""Stream chunks between processes on one GPU: its tensors are lent, the rest travels as ever."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_omni.proto.codec import register_type
from sglang_omni.relay.base import Relay
from sglang_omni.relay.shm.cuda_driver import is_cuda_in_use
from sglang_omni.relay.shm.cuda_ipc import CannotLend, is_lendable

logger = logging.getLogger(__name__)

# Tensors deeper than this are copied like any other.
_MAX_DEPTH = 16
_reported: set[str] = set()


@dataclass(frozen=True)
class LentTensor:
    """Stands in a chunk for a tensor that its reader finds where it is."""

    number: int


register_type(LentTensor)


async def lend(relay: Relay, chunk: Any, request_id: str, target: str) -> tuple[Any, dict[str, Any] | None]:
    """Lend the tensors of this process's GPU that are in a chunk's dicts, lists and tuples.

    Where that cannot be, the reason is logged once and the chunk stays as it is.

    Returns:
        The chunk to write, and what ``borrow`` needs beside it; None where nothing is lent.
    """
    if not is_cuda_in_use():
        return chunk, None
    tensors: list[Any] = []

    def take_out(value: Any) -> Any:
        if not is_lendable(value):
            return value
        tensors.append(value)
        return LentTensor(len(tensors) - 1)

    outline = _replace(chunk, take_out)
    if not tensors:
        return chunk, None
    try:
        if not getattr(relay, "lends_tensors", False):
            raise CannotLend(f"the {type(relay).__name__} does not lend tensors")
        loan = await relay.lend_tensors(tensors, request_id, target)
    except CannotLend as error:
        reason = str(error)
        if reason not in _reported:
            _reported.add(reason)
            logger.warning(
                "Stream chunks for %r are copied although it is on the same GPU: %s", target, reason
            )
        return chunk, None
    return (chunk, None) if loan is None else (outline, loan)


async def borrow(relay: Relay, outline: Any, loan: Any) -> Any:
    """The chunk that ``lend`` was given.

    Raises:
        ValueError: What came is malformed.
        RelayError: The tensors cannot be had (any more).
    """
    if not getattr(relay, "lends_tensors", False):
        raise ValueError(f"lent tensors came for a {type(relay).__name__}, which does not lend")
    tensors = await relay.borrow_tensors(loan)

    def put_back(value: Any) -> Any:
        if type(value) is not LentTensor:
            return value
        number = value.number
        if type(number) is not int or not 0 <= number < len(tensors):
            raise ValueError(f"the chunk has {len(tensors)} lent tensors, not one of number {number!r:.50}")
        return tensors[number]

    return _replace(outline, put_back)


def _replace(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """``value`` with what it holds changed; containers in which nothing changes are not copied."""
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
