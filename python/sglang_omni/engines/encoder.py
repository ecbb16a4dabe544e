"""An engine for encoders, which computes items (images, audio clips, videos) of many requests in batches."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from sglang_omni.engines.cache import ItemOutput, OutputCache
from sglang_omni.engines.request import BaseRequest
from sglang_omni.gpu_faults import after_failure, is_out_of_memory

logger = logging.getLogger(__name__)


class ItemInfo(NamedTuple):
    """What the engine knows of an item.

    Attributes:
        key: Hash of its content. Items with equal keys have equal outputs.
        cost: Its share of ``max_batch_cost``, in the encoder's own unit.
        group: Items of different groups are never computed together.
    """

    key: bytes
    cost: int
    group: Hashable = None


class Encoder(Protocol):
    """A model that keeps no state between items."""

    def info(self, item: Any) -> ItemInfo: ...

    def encode(self, items: Sequence[Any]) -> list[ItemOutput]:
        """One output for each item, independent of the rest of the batch. Its tensors share no memory."""
        ...


@dataclass(eq=False, slots=True)
class EncoderRequest(BaseRequest):
    """A request for the outputs of some items.

    Attributes:
        outputs: One for each item, in order; complete when the request is finished.
        missing: Indices of the items that are not computed yet, by key.
    """

    items: Sequence[Any]
    outputs: list[ItemOutput] = field(default_factory=list)
    missing: dict[bytes, list[int]] = field(default_factory=dict)


class _Pending(NamedTuple):
    """An item to compute, and the requests that wait for it."""

    item: Any
    info: ItemInfo
    waiting: dict[str, EncoderRequest]


class EncoderEngine:
    """Implements ``engines.base.Engine``, which documents the methods.

    Items are computed in the order of arrival, and once for all the requests that wait for the same content.
    If a GPU has too little memory for a batch, its items are computed one by one.

    Args:
        max_batch_cost: The most that the items of a batch may cost together; an item that costs more is
            computed alone.
    """

    def __init__(self, encoder: Encoder, cache: OutputCache, *, max_batch_cost: int) -> None:
        self._encoder = encoder
        self._cache = cache
        self._max_batch_cost = max_batch_cost
        self._requests: dict[str, EncoderRequest] = {}
        self._pending: dict[bytes, _Pending] = {}
        self._complete: dict[str, EncoderRequest] = {}
        self._batch: list[_Pending] = []
        self.stepped: Collection[str] = ()
        self._num_steps = self._num_items = self._max_batch_size = 0
        self._hits = self._misses = 0

    @property
    def has_work(self) -> bool:
        return bool(self._pending or self._complete)

    @property
    def running(self) -> list[EncoderRequest]:
        return list(
            {id(request): request for item in self._batch for request in item.waiting.values()}.values()
        )

    def add(self, request: EncoderRequest) -> None:
        request_id = request.request_id
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is already in the engine")
        self._requests[request_id] = request
        request.outputs = [()] * len(request.items)
        for index, item in enumerate(request.items):
            info = self._encoder.info(item)
            if (output := self._cache.get(info.key)) is not None:
                request.outputs[index] = output
                self._hits += 1
                continue
            if (pending := self._pending.get(info.key)) is not None:
                self._hits += 1
            else:
                pending = self._pending[info.key] = _Pending(item, info, {})
                self._misses += 1
            pending.waiting[request_id] = request
            request.missing.setdefault(info.key, []).append(index)
        self._finish_if_complete(request)

    def abort(self, request_id: str) -> EncoderRequest | None:
        """Takes a request out. Items that no other request waits for are not computed."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        self._complete.pop(request_id, None)
        for key in request.missing:
            pending = self._pending.get(key)
            if pending is not None:
                del pending.waiting[request_id]
                if not pending.waiting:
                    del self._pending[key]
        return request

    def step(self) -> list[EncoderRequest]:
        self._batch = self._schedule()
        self.stepped = {request_id for pending in self._batch for request_id in pending.waiting}
        if self._batch and (outputs := self._encode(self._batch)) is not None:
            for pending, output in zip(self._batch, outputs, strict=True):
                self._update(pending, output)
            self._num_steps += 1
            self._num_items += len(self._batch)
            self._max_batch_size = max(self._max_batch_size, len(self._batch))
        self._batch = []
        complete = list(self._complete.values())
        for request in complete:
            del self._requests[request.request_id]
        self._complete = {}
        return complete

    def flush_cache(self) -> None:
        self._cache.clear()

    def reset_counters(self) -> None:
        self._num_steps = self._num_items = self._max_batch_size = 0
        self._hits = self._misses = 0

    def stats(self) -> dict[str, int]:
        """A hit is an item that has been computed, or will be, for another request."""
        return {
            "num_running_reqs": sum(any(request.outputs) for request in self._requests.values()),
            "num_queue_reqs": sum(not any(request.outputs) for request in self._requests.values()),
            "num_items_total": self._num_items,
            "num_steps_total": self._num_steps,
            "max_batch_size": self._max_batch_size,
            "cache_hits_total": self._hits,
            "cache_misses_total": self._misses,
            "cache_used_bytes": self._cache.used_bytes,
            "cache_max_bytes": self._cache.max_bytes,
        }

    def _encode(self, batch: list[_Pending]) -> list[ItemOutput] | None:
        """The items' outputs; None if the GPU has too little memory for all of them, which are then alone."""
        try:
            return self._encoder.encode([pending.item for pending in batch])
        except RuntimeError as exc:
            if len(batch) == 1 or not is_out_of_memory(exc):
                raise
            logger.warning(
                "A batch of %d items needs too much memory; each is tried alone: %s", len(batch), exc
            )
            after_failure(exc)
        # First in line, each in a group of its own.
        alone = {p.info.key: p._replace(info=p.info._replace(group=object())) for p in batch}
        self._pending = alone | self._pending
        return None

    def _schedule(self) -> list[_Pending]:
        """The oldest item and others that fit its batch. They leave the queue: failures are not retried."""
        batch: list[_Pending] = []
        cost = 0
        for pending in self._pending.values():
            first = batch[0] if batch else pending
            fits = not batch or cost + pending.info.cost <= self._max_batch_cost
            if fits and pending.info.group == first.info.group:
                batch.append(pending)
                cost += pending.info.cost
        for pending in batch:
            del self._pending[pending.info.key]
        return batch

    def _update(self, pending: _Pending, output: ItemOutput) -> None:
        self._cache.put(pending.info.key, output)
        for request in pending.waiting.values():
            for index in request.missing.pop(pending.info.key):
                request.outputs[index] = output
            self._finish_if_complete(request)

    def _finish_if_complete(self, request: EncoderRequest) -> None:
        if not request.missing:
            request.finish_reason = "stop"
            self._complete[request.request_id] = request
