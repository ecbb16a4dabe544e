"""What enters and leaves the prefix cache, as events for those who route requests to it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

from sglang_omni.proto.kv_events import all_blocks_cleared, block_removed, block_stored


class _Block(NamedTuple):
    hash: int
    parent: int
    children: set[int]


class CacheEvents:
    """Collects the events of a step, and hands them on as a batch.

    A block is named by a hash of its tokens and of the blocks before it, so that it has the same name in each
    process and after a restart. Only blocks that can be found are reported: with a block, those that follow
    it are lost.

    Args:
        publish: Gets each batch, ``[time, events, rank]``, and must not block.
        block_size: Tokens of a block.
    """

    def __init__(self, publish: Callable[[list[Any]], None], block_size: int) -> None:
        self._publish = publish
        self._block_size = block_size
        # By the nodes of the cache, of which 0 comes before the first block.
        self._blocks = {0: _Block(0, 0, set())}
        self._events: list[list[Any]] = []

    def stored(self, parent: int, node: int, token_ids: list[int], key: tuple[int, ...]) -> None:
        """A block can be found under the node ``parent``.

        Args:
            token_ids: Its tokens.
            key: What the cache compares instead, where placeholders have become media.
        """
        before = self._blocks.get(parent)
        if before is None:
            # Nobody finds this one, since the block before it is lost.
            return
        extra = None if tuple(token_ids) == key else [blake2b(_bytes(key), digest_size=16).hexdigest()]
        digest = blake2b(before.hash.to_bytes(8, "big") + _bytes(key), digest_size=8).digest()
        # 63 bits: other publishers' are signed.
        block = _Block(int.from_bytes(digest, "big") >> 1, parent, set())
        self._blocks[node] = block
        before.children.add(node)
        last = self._events[-1] if self._events else None
        if extra is None and last is not None and _is_followed_by(last, before.hash):
            last[1].append(block.hash)
            last[3].extend(token_ids)
            return
        name_before = before.hash if parent else None
        self._events.append(block_stored([block.hash], name_before, token_ids, self._block_size, [extra]))

    def removed(self, node: int) -> None:
        """A block's memory is used for something else."""
        block = self._blocks.get(node)
        if block is None:
            return
        self._blocks[block.parent].children.discard(node)
        lost, hashes = [node], []
        while lost:
            gone = self._blocks.pop(lost.pop())
            hashes.append(gone.hash)
            lost.extend(gone.children)
        self._events.append(block_removed(hashes))
        if len(self._blocks) == 1:
            # A subscriber that came too late to know the whole cache does now.
            self._events.append(all_blocks_cleared())

    def flush(self) -> None:
        """Publishes what was collected."""
        if self._events:
            self._publish([time.time(), self._events, 0])
            self._events = []


def _is_followed_by(event: list[Any], name: int) -> bool:
    """True if an event of stored blocks without extra keys ends with the block of this name."""
    kind, hashes, *_, extra_keys = event
    return kind == "BlockStored" and extra_keys is None and hashes[-1] == name


def _bytes(tokens: tuple[int, ...]) -> bytes:
    return array("q", tokens).tobytes()
