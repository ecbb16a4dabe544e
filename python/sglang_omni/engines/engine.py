"""OmniEngine: the loop of schedule, execute and update that serves an autoregressive model."""

from __future__ import annotations

import logging
from collections.abc import Collection

from sglang_omni.engines.batching import BatchBuilder
from sglang_omni.engines.counters import StepCounters
from sglang_omni.engines.request import EngineRequest
from sglang_omni.engines.returns import Returns
from sglang_omni.engines.scheduler import BatchScheduler
from sglang_omni.gpu_faults import after_failure, is_out_of_memory
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.runner import ModelRunner
from sglang_omni.proto import Unavailable

logger = logging.getLogger(__name__)


class OmniEngine:
    """Implements ``engines.base.TokenEngine``, which documents the methods."""

    def __init__(self, scheduler: BatchScheduler, builder: BatchBuilder, runner: ModelRunner) -> None:
        self.scheduler = scheduler
        self.builder = builder
        self.runner = runner
        self._requests: dict[str, EngineRequest] = {}
        self._counters = StepCounters()
        self._returns = Returns(runner.outbox, waits=runner.model.group.size > 1)
        self.stepped: Collection[str] = ()

    @property
    def config(self) -> DecoderConfig:
        return self.runner.model.config

    @property
    def longest_step(self) -> int:
        return min(self.scheduler.planner.chunked_prefill_size, self.scheduler.longest_prompt)

    @property
    def has_work(self) -> bool:
        return bool(self._returns) or self.scheduler.has_work

    @property
    def running(self) -> list[EngineRequest]:
        return list(self.scheduler.running)

    def add(self, request: EngineRequest) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id!r} is already in the engine")
        self.scheduler.add(request)
        self._requests[request.request_id] = request

    def abort(self, request_id: str) -> EngineRequest | None:
        self._returns.forget(request_id)
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.scheduler.abort(request)
        return request

    def step(self) -> list[EngineRequest]:
        advanced = self._step()
        if (events := self.scheduler.resources.events) is not None:
            events.flush()
        return advanced

    def _step(self) -> list[EngineRequest]:
        chunks = self.scheduler.schedule()
        self.stepped = [chunk.request.request_id for chunk in chunks]
        if not chunks:
            if self._returns:
                return self._returns.flush()
            lost = self.scheduler.give_up()
            if lost is None:
                return []
            del self._requests[lost.request_id]
            return [lost]
        try:
            step = self.builder.build(chunks)
            tokens = self.runner.execute(step.forward, step.sampling, step.prompts)
        except RuntimeError as exc:
            if len(chunks) == 1 or not is_out_of_memory(exc) or self.runner.model.group.size > 1:
                raise
            after_failure(exc)
            return [self._make_room(chunks[-1].request)]
        advanced = self.scheduler.update(step.chunks, tokens)
        self._counters.count(len(chunks), advanced)
        for request in advanced:
            if request.finish_reason is not None:
                del self._requests[request.request_id]
        return self._returns.after(advanced)

    def _make_room(self, newest: EngineRequest) -> EngineRequest:
        """Ends a request of a step for which the GPU had too little memory, so that the others go on.

        They are computed again from where they were: the keys and values that the step has written are
        written again, and no token was added. Only their random numbers are others now.
        """
        logger.warning("A step needs too much memory: request %s ends for the others", newest.request_id)
        newest.failure = Unavailable("the GPU has too little memory for this request beside the others")
        self.scheduler.abort(newest)
        del self._requests[newest.request_id]
        return newest

    def flush_cache(self) -> None:
        resources = self.scheduler.resources
        resources.clear_prefix_cache()
        if resources.events is not None:
            resources.events.flush()

    def reset_counters(self) -> None:
        self._counters = StepCounters()
        self.scheduler.num_retracted = 0

    def stats(self) -> dict[str, int]:
        scheduler, resources = self.scheduler, self.scheduler.resources
        size = resources.page_size
        return {
            "num_running_reqs": len(scheduler.running),
            "max_running_reqs": scheduler.planner.max_running_requests,
            "num_queue_reqs": len(scheduler.waiting),
            "kv_used_tokens": resources.num_used_pages * size,
            "kv_evictable_tokens": resources.num_evictable_pages * size,
            "max_total_num_tokens": resources.num_pages * size,
            "num_retracted_requests_total": scheduler.num_retracted,
            **self._counters.stats(),
        }
