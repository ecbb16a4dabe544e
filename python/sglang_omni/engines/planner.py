"""Plans a step: which tokens of which requests it computes."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sglang_omni.engines.request import EngineRequest
from sglang_omni.engines.resources import ResourceManager


class Chunk(NamedTuple):
    """The next ``num_tokens`` tokens of a request. ``samples`` is True if they reach its end."""

    request: EngineRequest
    num_tokens: int
    samples: bool


class Plan(NamedTuple):
    """One step. ``admitted`` requests move from the waiting line into the batch, ``preempted`` ones back."""

    chunks: list[Chunk]
    admitted: list[EngineRequest]
    preempted: list[EngineRequest]


class BatchPlanner:
    """Decodes every running request that is ready, and fills the step with prompts, oldest first.

    Args:
        max_running_requests: The most sequences in the batch at once, held ones included.
        chunked_prefill_size: The most prompt tokens in one step; longer prompts take several.
    """

    def __init__(self, *, max_running_requests: int, chunked_prefill_size: int) -> None:
        if max_running_requests < 1 or chunked_prefill_size < 1:
            raise ValueError(
                f"max_running_requests ({max_running_requests}) and chunked_prefill_size "
                f"({chunked_prefill_size}) must be at least 1"
            )
        self.max_running_requests = max_running_requests
        self.chunked_prefill_size = chunked_prefill_size

    def plan(
        self, waiting: deque[EngineRequest], running: list[EngineRequest], resources: ResourceManager
    ) -> Plan:
        """Plans a step and takes its pages.

        If the pool runs out, running requests give their pages back and are computed again later: held ones
        first, then the youngest. A request alone always fits, because admission refuses one that the whole
        pool cannot hold.
        """
        budget = self.chunked_prefill_size
        chunks: list[Chunk] = []
        preempted: list[EngineRequest] = []
        held = [request for request in running if not _is_ready(request)]
        remaining = [request for request in running if _is_ready(request)] if held else list(running)
        index = 0
        while index < len(remaining):
            request = remaining[index]
            count = request.num_tokens - request.num_computed
            is_prompt = count > 1
            if is_prompt:
                count = min(count, budget)
            if not resources.grow(request, request.num_computed + count):
                victim = (held or remaining).pop()
                resources.release(victim)
                victim.num_preempted += 1
                preempted.append(victim)
                continue
            if count > 0:
                chunks.append(_chunk(request, count))
            if is_prompt:
                budget -= count
            index += 1

        admitted: list[EngineRequest] = []
        num_running = len(remaining) + len(held)
        while not preempted and budget > 0:
            newcomer = self.next_in_line(waiting, num_running, resources)
            if newcomer is None:
                break
            resources.attach_prefix(newcomer)
            resources.grow(newcomer, newcomer.num_tokens)
            if newcomer.num_preempted == 0:
                newcomer.cached_tokens = newcomer.num_computed
            count = min(newcomer.num_tokens - newcomer.num_computed, budget)
            waiting.remove(newcomer)
            admitted.append(newcomer)
            chunks.append(_chunk(newcomer, count))
            num_running += 1
            budget -= count
        return Plan(chunks, admitted, preempted)

    def next_in_line(
        self, waiting: deque[EngineRequest], num_running: int, resources: ResourceManager
    ) -> EngineRequest | None:
        """The request to admit next; None if none is ready, or the first that is finds no room.

        There must be room for the whole sequence, not only a chunk: half a prompt in a full pool is of no
        use. The running requests keep a page each to grow into, or the newcomer would soon be preempted.
        """
        if num_running >= self.max_running_requests:
            return None
        request = next((request for request in waiting if request.is_ready(request.num_tokens)), None)
        if request is None or not resources.fits(request, spare=num_running):
            return None
        return request

    def has_work(
        self, waiting: deque[EngineRequest], running: list[EngineRequest], resources: ResourceManager
    ) -> bool:
        """True if a step would do something now: compute, or give up a request that can never run."""
        if any(map(_is_ready, running)):
            return True
        if not running:
            return any(map(_is_ready, waiting))
        return self.next_in_line(waiting, len(running), resources) is not None


def _is_ready(request: EngineRequest) -> bool:
    # A prompt is admitted whole, so only the tokens after it may be missing.
    return request.is_ready(request.num_tokens)


def _chunk(request: EngineRequest, count: int) -> Chunk:
    return Chunk(request, count, request.num_computed + count == request.num_tokens)
