"""SGLang's scheduler as an ``Engine``."""

from __future__ import annotations

import logging
from collections.abc import Collection

import torch

from sglang_omni.engines.admission import admit
from sglang_omni.engines.counters import StepCounters
from sglang_omni.engines.iteration import IterationController
from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.request import EngineRequest, RequestStatus
from sglang_omni.engines.returns import Returns
from sglang_omni.engines.sglang.compat import Runtime
from sglang_omni.engines.sglang.lora import adapters
from sglang_omni.engines.sglang.memory import own_pool
from sglang_omni.engines.sglang.request import ScheduledRequest
from sglang_omni.engines.sglang.scheduler import HoldingScheduler
from sglang_omni.engines.sglang.settings import usable_tokens

logger = logging.getLogger(__name__)


class SGLangEngine:
    """Implements ``engines.base.TokenEngine``, which documents the methods, with SGLang's scheduler.

    The engines of one process take turns, because SGLang's settings are global. ``close`` frees the weights
    and the cache.
    """

    def __init__(self, runtime: Runtime, spec: DecoderSpec, options: EngineOptions) -> None:
        self._runtime = runtime
        self.config = spec.config
        self._options = options
        limit = spec.config.max_position_embeddings
        self._context_length = min(options.context_length or limit, limit)
        self._controller = IterationController(spec.config.eos_token_ids)
        with runtime.building(), own_pool(options):
            self.scheduler = HoldingScheduler(runtime, spec)
        # The size that SGLang built. If SGLang chose it and memory is short, it only warns.
        self._pool_tokens = usable_tokens(self.scheduler.token_to_kv_pool_allocator)
        if self._pool_tokens < 1:
            raise ValueError(
                f"memory leaves room for a KV cache of {self.scheduler.max_total_num_tokens} tokens, too few "
                "for any request: raise mem_fraction_static, or free memory"
            )
        if self._pool_tokens <= options.max_total_tokens - (options.page_size or 1):
            logger.warning(
                "The KV cache holds %d tokens: memory leaves no room for the %d of max_total_tokens; longer "
                "prompts are refused",
                self._pool_tokens,
                options.max_total_tokens,
            )
        # SGLang's ids of the LoRA adapters, by name.
        self._adapters = {ref.lora_name: ref.lora_id for ref in adapters(options)}
        self._requests: dict[str, ScheduledRequest] = {}
        # True after a step that could run nothing: only a new or aborted request can change that.
        self._stalled = False
        self._counters = StepCounters()
        outbox = None if spec.strategy is None else self.scheduler.outbox
        self._returns = Returns(outbox, waits=options.tp.size > 1)
        self.stepped: Collection[str] = ()

    @property
    def longest_step(self) -> int:
        longest_prompt = min(self._context_length, self._pool_tokens) - 1
        chunk = self._options.chunked_prefill_size
        return longest_prompt if chunk == -1 else min(chunk, longest_prompt)

    @property
    def has_work(self) -> bool:
        scheduler = self.scheduler
        if (
            self._returns
            or scheduler.has_unread
            or scheduler.has_ready_running
            or any(req.is_ready for req in scheduler.parked)
        ):
            return True
        return not self._stalled and bool(scheduler.waiting_queue or scheduler.chunked_req)

    @property
    def running(self) -> list[EngineRequest]:
        return [req.request for req in self._requests.values() if req.kv.holds_kv]

    def add(self, request: EngineRequest) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id!r} is already in the engine")
        config = self.config
        admit(
            request,
            vocab_size=config.vocab_size,
            context_length=self._context_length,
            pool_tokens=self._pool_tokens,
            num_positions=config.max_position_embeddings,
        )
        with self._runtime.active():
            adapter = None if request.adapter is None else self._adapters[request.adapter]
            req = ScheduledRequest(request, self._controller, config.vocab_size, adapter)
            self.scheduler.enqueue(req)
        self._requests[request.request_id] = req
        self._stalled = False

    def abort(self, request_id: str) -> EngineRequest | None:
        self._returns.forget(request_id)
        req = self._requests.pop(request_id, None)
        if req is None:
            return None
        with self._runtime.active():
            self.scheduler.remove(req)
        req.request.finish_reason = "abort"
        req.request.status = RequestStatus.FINISHED
        self._stalled = False
        return req.request

    def step(self) -> list[EngineRequest]:
        with self._runtime.active():
            stepped = self.scheduler.step()
            if not stepped and self.scheduler.is_stuck:
                # Requests that ended since the last step leave SGLang's batches only in the next one.
                stepped = self.scheduler.step() or self.scheduler.give_up(self._pool_tokens)
        self._stalled = not stepped and not self.scheduler.has_unread
        self.stepped = [req.request.request_id for req in stepped]
        if not stepped:
            return self._returns.flush()
        self._counters.count(len(stepped), [req.request for req in stepped if req.took_token])
        advanced: list[EngineRequest] = []
        for req in stepped:
            request = req.request
            request.status = RequestStatus.RUNNING
            if not req.took_token and request.finish_reason is None:
                continue
            advanced.append(request)
            if request.finish_reason is not None:
                request.status = RequestStatus.FINISHED
                request.history = None
                del self._requests[request.request_id]
        return self._returns.after(advanced)

    def flush_cache(self) -> None:
        with self._runtime.active():
            self.scheduler.forget_unused_prefixes()

    def reset_counters(self) -> None:
        self._counters = StepCounters()
        self.scheduler.num_retracted = 0

    def stats(self) -> dict[str, int]:
        scheduler = self.scheduler
        running = sum(req.kv.holds_kv for req in self._requests.values())
        pool = scheduler.token_to_kv_pool_allocator
        evictable = scheduler.tree_cache.evictable_size()
        return {
            "num_running_reqs": running,
            "max_running_reqs": scheduler.max_running_requests,
            "num_queue_reqs": len(self._requests) - running,
            "kv_used_tokens": pool.size - pool.available_size() - evictable,
            "kv_evictable_tokens": evictable,
            "max_total_num_tokens": self._pool_tokens,
            "num_retracted_requests_total": scheduler.num_retracted,
            **self._counters.stats(),
        }

    def check_pools(self) -> None:
        """Raises if SGLang's accounts of an idle engine do not add up; for tests."""
        with self._runtime.active():
            self.scheduler.on_idle()

    def close(self) -> None:
        """Frees the engine's memory. The engine cannot be used afterwards."""
        for request_id in list(self._requests):
            self.abort(request_id)
        del self.scheduler
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
