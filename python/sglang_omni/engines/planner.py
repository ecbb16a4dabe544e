"""Which tokens of which requests the next step computes."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sglang_omni.engines.request import EngineRequest
from sglang_omni.engines.resources import ResourceManager


class Chunk(NamedTuple):
    """The next ``num_tokens`` tokens of a request; ``samples`` if they reach its end."""

    request: EngineRequest
    num_tokens: int
    samples: bool


class Plan(NamedTuple):
    """One step. ``admitted`` and ``preempted`` requests change between the waiting line and the batch."""

    chunks: list[Chunk]
    admitted: list[EngineRequest]
    preempted: list[EngineRequest]


class BatchPlanner:
    """Decodes everything that runs and fills the step up with prompts, the oldest first.

    Args:
        max_running_requests: Sequences in the batch at once.
        max_step_tokens: Tokens of one step; longer prompts are computed in several.
    """

    def __init__(self, *, max_running_requests: int, max_step_tokens: int) -> None:
        if max_running_requests < 1 or max_step_tokens < max_running_requests:
            raise ValueError(
                f"max_step_tokens ({max_step_tokens}) must be at least max_running_requests "
                f"({max_running_requests}), and that at least 1"
            )
        self.max_running_requests = max_running_requests
        self.max_step_tokens = max_step_tokens

    def plan(
        self, waiting: deque[EngineRequest], running: list[EngineRequest], resources: ResourceManager
    ) -> Plan:
        """Plans a step and takes the pages it needs.

        When the pool runs out, the youngest running requests give their pages back and are computed again
        later.
        A request alone always fits: admission refuses what the whole pool cannot hold.
        """
        budget = self.max_step_tokens
        chunks: list[Chunk] = []
        preempted: list[EngineRequest] = []
        remaining = list(running)
        index = 0
        while index < len(remaining):
            request = remaining[index]
            # Each request behind this one keeps at least one token of the step.
            share = budget - (len(remaining) - index - 1)
            count = min(request.num_tokens - request.num_computed, share)
            if not resources.grow(request, request.num_computed + count):
                victim = remaining.pop()
                resources.release(victim)
                victim.num_preempted += 1
                preempted.append(victim)
                continue
            chunks.append(_chunk(request, count))
            budget -= count
            index += 1

        admitted: list[EngineRequest] = []
        while waiting and not preempted and budget > 0 and len(chunks) < self.max_running_requests:
            request = waiting[0]
            resources.attach_prefix(request)
            count = min(request.num_tokens - request.num_computed, budget)
            # Room for the whole sequence, not only this chunk: half a prompt in a full pool helps nobody.
            # The others keep a page each to grow into, or the newcomer would soon be put out again.
            if not resources.grow(request, request.num_tokens, spare=len(chunks)):
                resources.release(request)
                break
            if request.num_preempted == 0:
                request.cached_tokens = request.num_computed
            admitted.append(waiting.popleft())
            chunks.append(_chunk(request, count))
            budget -= count
        return Plan(chunks, admitted, preempted)


def _chunk(request: EngineRequest, count: int) -> Chunk:
    return Chunk(request, count, request.num_computed + count == request.num_tokens)
