"""The waiting line and the running batch of ``OmniEngine``: WAITING -> RUNNING -> FINISHED."""

from __future__ import annotations

from collections import deque

from sglang_omni.engines.admission import admit, never_runs
from sglang_omni.engines.iteration import IterationController
from sglang_omni.engines.planner import BatchPlanner, Chunk
from sglang_omni.engines.request import EngineRequest, RequestStatus
from sglang_omni.engines.resources import ResourceManager


class BatchScheduler:
    """Moves requests between the waiting line and the running batch.

    Args:
        context_length: The most tokens of prompt and output together.
    """

    def __init__(
        self,
        planner: BatchPlanner,
        resources: ResourceManager,
        controller: IterationController,
        *,
        vocab_size: int,
        context_length: int,
    ) -> None:
        self.planner = planner
        self.resources = resources
        self.controller = controller
        self.vocab_size = vocab_size
        self._pool_tokens = resources.num_pages * resources.page_size
        self._context_length = context_length
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self.num_retracted = 0

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt, with an answer of one token."""
        return min(self._context_length, self._pool_tokens) - 1

    @property
    def has_work(self) -> bool:
        return self.planner.has_work(self.waiting, self.running, self.resources)

    def add(self, request: EngineRequest) -> None:
        """Puts a request in line.

        Raises:
            RequestError: The request can never run: an empty prompt, unknown tokens, or a prompt too long.
        """
        admit(
            request,
            vocab_size=self.vocab_size,
            context_length=self._context_length,
            pool_tokens=self._pool_tokens,
        )
        self.waiting.append(request)

    def abort(self, request: EngineRequest) -> None:
        """Ends a request at once and frees its pages. Does nothing if it is finished."""
        if request.status is RequestStatus.FINISHED:
            return
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.finish_reason = "abort"
        self._finish(request)

    def schedule(self) -> list[Chunk]:
        """Plans the next step and takes its pages. Returns no chunks if there is nothing to compute."""
        plan = self.planner.plan(self.waiting, self.running, self.resources)
        self.num_retracted += len(plan.preempted)
        for request in plan.preempted:
            self.running.remove(request)
            request.status = RequestStatus.WAITING
            self.waiting.appendleft(request)
        for request in plan.admitted:
            request.status = RequestStatus.RUNNING
            self.running.append(request)
        return plan.chunks

    def give_up(self) -> EngineRequest | None:
        """Ends the first request in line if it can never run. Called after a step with nothing to compute.

        If nothing runs, nothing will free room for it, and it keeps all others waiting. Admission refuses
        such requests; this keeps a mistake there, or lost pages, from stopping the engine.
        """
        if self.running:
            return None
        request = next((request for request in self.waiting if request.is_ready(request.num_tokens)), None)
        if request is None or self.resources.fits(request):
            return None
        free = self.resources.num_pages - self.resources.num_used_pages
        request.failure = never_runs(request, free * self.resources.page_size, self._pool_tokens)
        self.abort(request)
        return request

    def update(self, chunks: list[Chunk], tokens: list[int]) -> list[EngineRequest]:
        """Takes a step's tokens, one for each chunk that samples. Returns the requests that got one."""
        advanced: list[EngineRequest] = []
        new_tokens = iter(tokens)
        for chunk in chunks:
            request = chunk.request
            request.num_computed += chunk.num_tokens
            self.resources.publish(request)
            if not chunk.samples:
                continue
            request.finish_reason = self.controller.advance(request, next(new_tokens))
            advanced.append(request)
            if request.finish_reason is not None:
                self.running.remove(request)
                self._finish(request)
        return advanced

    def _finish(self, request: EngineRequest) -> None:
        request.status = RequestStatus.FINISHED
        request.history = None
        self.resources.release(request)
