"""SGLang's scheduler with requests that wait for input, our sampler and feedback strategies."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import NextBatchPlan, Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.ipc_channels import SchedulerIpcChannels
from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.model_executor.cuda_graph_config import Backend, cuda_graph_fully_disabled
from sglang.srt.runtime_context import get_exec
from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

from sglang_omni.engines.admission import never_runs
from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.sglang.compat import Runtime
from sglang_omni.engines.sglang.inputs import decode_spans, extend_inputs, samples
from sglang_omni.engines.sglang.models.decoder import OmniDecoder
from sglang_omni.engines.sglang.prompt_scores import name_prompt_tokens, take_prompt_scores
from sglang_omni.engines.sglang.request import ScheduledRequest
from sglang_omni.engines.sglang.sampler import OmniSampler
from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackStrategy, StateSink
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.media import captures_due, rows_due
from sglang_omni.model_runner.sampling import Choice, SamplingRow
from sglang_omni.model_runner.sequence import SequenceSpan

logger = logging.getLogger(__name__)


class _Launched(NamedTuple):
    """A step whose tokens are not read yet."""

    batch: ScheduleBatch
    result: Any
    rows: Sequence[SamplingRow | None]
    choice: Choice


class HoldingScheduler(Scheduler):
    """SGLang's scheduler with requests that may wait for their next input.

    A new request joins the line when its whole prompt has arrived. A running request whose next input is
    missing is split off the running batch for the step, keeps its KV, and is merged back afterwards. If KV
    runs short, waiting requests lose theirs first.

    With ``enable_overlap``, which SGLang sets from its settings, a step is launched before the tokens of the
    one before it are read: they go to the next step on the device, and the host's work hides behind the
    device's. A request that ends is computed once more, for nothing. Of one whose next choice depends on its
    tokens, such as a grammar's, each step is read before the next is planned.

    Attributes:
        parked: Requests whose prompts are not complete, in the order of arrival.
        num_retracted: How often a request lost its KV to others.
        outbox: Takes what steps put out beside tokens.
    """

    running_batch: ScheduleBatch
    last_batch: ScheduleBatch | None
    chunked_req: ScheduledRequest | None
    _decoder: OmniDecoder | None

    def __init__(self, runtime: Runtime, spec: DecoderSpec) -> None:
        self.parked: list[ScheduledRequest] = []
        self.num_retracted = 0
        self._held: ScheduleBatch | None = None
        # Each once, in order, until a step returns them.
        self._stepped: dict[ScheduledRequest, None] = {}
        super().__init__(runtime.server_args, runtime.port_args)
        self.sampler = OmniSampler(spec.suppress_token_ids, launches_ahead=self.enable_overlap)
        self.tp_worker.model_runner.sampler = self.sampler
        # SGLang plans with what is in it: a request that ends with its next token is left out.
        self.result_queue: deque[_Launched] = deque()
        self.enable_skip_finishing_decode = self.enable_overlap
        if self.enable_overlap:
            # Neither waits for the other, as SGLang's own loop has it.
            self.schedule_stream = self.device_module.Stream(priority=0)
            self._war_barrier_enabled = self.device != "cpu"
        self._strategy = spec.strategy
        self._captures_all = spec.captures_all
        self.outbox = StateSink()

    def init_all_cuda_graphs(self) -> None:
        """Called when weights and cache are there, before SGLang captures decode steps.

        If capturing fails, it is tried again for decode steps alone: graphs of prompts take more memory and
        gain less. If that fails too, steps run without graphs. Not in a tensor parallel group, whose ranks
        would launch different things.
        """
        runner = self.tp_worker.model_runner
        self._decoder = runner.model if isinstance(runner.model, OmniDecoder) else None
        if self._decoder is not None:
            # SGLang keeps the first page for rows that pad a batch.
            pool = runner.token_to_kv_pool_allocator
            self._decoder.allocate(runner.req_to_token_pool.size, pool.size + pool.page_size)
        graphs = get_exec().graph.cuda_graph_config
        while True:
            try:
                super().init_all_cuda_graphs()
                return
            except Exception as failure:
                if cuda_graph_fully_disabled() or self.server_args.tp_size > 1:
                    raise
                # If the GPU itself has failed, this raises.
                torch.cuda.synchronize()
                reason = next(iter(str(failure).splitlines()), repr(failure))
            given_up = "steps" if graphs.prefill.backend == Backend.DISABLED else "prompts"
            logger.warning("CUDA graphs cannot be captured, so %s run without them: %s", given_up, reason)
            if given_up == "prompts":
                graphs.prefill.backend = Backend.DISABLED
            else:
                graphs.decode.backend = Backend.DISABLED
            # The failure is forgotten by now. Its graphs and their runners hold each other, and their memory.
            gc.collect()

    # The parts that talk to SGLang's other processes are left out.

    def init_ipc_channels(self, port_args: Any) -> None:
        self.ipc_channels = SchedulerIpcChannels(
            recv_from_tokenizer=None,
            recv_from_rpc=None,
            send_to_tokenizer=SenderWrapper(None),
            send_to_detokenizer=SenderWrapper(None),
            send_metrics_from_scheduler=None,
        )
        self.load_snapshot_writer = None
        self.recv_from_tokenizer = None

    def init_watch_dog_memory_saver_input_blocker(self) -> None:
        # SGLang's watchdog kills the parent process; here the pipeline watches its processes.
        self.memory_saver_adapter = TorchMemorySaverAdapter.create(enable=False)
        self.watchdog = self.recv_skipper = self.input_blocker = None

    def get_output_streamer_class(self) -> type[SchedulerOutputStreamer]:
        return _NoOutput

    # Adding and removing requests.

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        if is_retracted:
            self.num_retracted += 1
        if req.is_ready:
            super()._add_request_to_queue(req, is_retracted)
        else:
            self.parked.append(req)

    def enqueue(self, req: ScheduledRequest) -> None:
        """Puts a new request in line, or parks it until its prompt is complete."""
        self._add_request_to_queue(req)

    def admit_ready(self) -> None:
        """Puts in line the parked requests whose inputs have arrived."""
        ready = [req for req in self.parked if req.is_ready]
        if ready:
            self.parked = [req for req in self.parked if req not in ready]
            for req in ready:
                super()._add_request_to_queue(req)

    def remove(self, req: ScheduledRequest) -> None:
        """Ends a request between steps; its KV is free at once."""
        self._stepped.pop(req, None)
        if req in self.parked:
            self.parked.remove(req)
        elif req in self.waiting_queue:
            self.waiting_queue.remove(req)
        if self.chunked_req is req:
            self.chunked_req = None
        # A request that was retracted, or is still in line, holds no KV.
        if req.kv.holds_kv:
            release_kv_cache(req, self.tree_cache, checkpoint=False)
        # SGLang drops finished requests from its batches before it plans the next one.
        req.set_aborted()

    def forget_unused_prefixes(self) -> None:
        self.tree_cache.evict(EvictParams(num_tokens=self.tree_cache.evictable_size()))

    @property
    def has_unread(self) -> bool:
        """True if a step was launched, or ended requests, that none has returned."""
        return bool(self.result_queue or self._stepped)

    @property
    def has_ready_running(self) -> bool:
        """True if a prefilled request can take its next step."""
        batches = (self.running_batch, self.last_batch)
        return any(
            req.is_ready and not req.finished()
            for batch in batches
            if batch is not None
            for req in batch.reqs
        )

    # One step.

    def step(self) -> Sequence[ScheduledRequest]:
        """Plans and computes one batch, or with ``enable_overlap`` launches it and reads the one before.

        Returns:
            The requests whose step was read, and those that SGLang gave up; empty if nothing can run.
        """
        if not self.enable_overlap:
            return self._step()
        if self._decoder is not None:
            # On this thread's stream, media have come and were joined. What was launched keeps its requests,
            # and they their media, until it is read.
            self.schedule_stream.wait_stream(self.device_module.current_stream())
        with self.device_module.stream(self.schedule_stream):
            try:
                return self._step()
            except BaseException:
                # All that were launched fail, too.
                self.result_queue.clear()
                raise

    def _step(self) -> list[ScheduledRequest]:
        self.admit_ready()
        if any(req.request.choices_need_tokens for step in self.result_queue for req in step.batch.reqs):
            self._read()
        plan: NextBatchPlan = self.get_next_batch_to_run(
            running_batch=self.running_batch, last_batch=self.last_batch
        )
        self.running_batch = plan.running_batch
        batch = self.last_batch = plan.batch_to_run
        try:
            if batch is not None:
                self._launch(batch)
            unread = 1 if self.enable_overlap and batch is not None else 0
            while len(self.result_queue) > unread:
                self._read()
        finally:
            self._merge_held()
        stepped, self._stepped = list(self._stepped), {}
        return stepped

    def _launch(self, batch: ScheduleBatch) -> None:
        result = self.run_batch(batch)
        if self.enable_overlap:
            self._apply_war_barrier()
            # Planning the next step changes the batch.
            batch = batch.copy()
        self.result_queue.append(_Launched(batch, result, self.sampler.rows, self.sampler.choice))

    def _read(self) -> None:
        """Waits for the tokens of the oldest step that was launched, and gives them to its requests."""
        batch, result, _, choice = self.result_queue.popleft()
        for req in batch.reqs:
            req.took_token = False
        # With overlap, some may have ended since it was launched.
        self._stepped |= {req: None for req in batch.reqs if not req.finished()}
        if self.enable_overlap:
            with self.forward_stream_ctx:
                result.next_token_ids = choice.read()
        self.process_batch_result(batch, result)
        if batch.return_logprob:
            take_prompt_scores(batch)
        if choice.corrected and self.enable_overlap:
            self._correct_inputs(batch)

    def _correct_inputs(self, batch: ScheduleBatch) -> None:
        """Gives the requests of a step that was read their next input again, as its tokens were corrected."""
        if self.result_queue and not self.result_queue[-1].batch.forward_mode.is_extend():
            self._launch_again()
            return
        # Those that were launched since have read a piece of their prompt.
        later = self.result_queue[-1].batch.reqs if self.result_queue else []
        reqs = [req for req in batch.reqs if req not in later and req.output_ids and not req.finished()]
        with self.forward_stream_ctx:
            self._keep_tokens(reqs, [req.kv.req_pool_idx for req in reqs])

    def _launch_again(self) -> None:
        """Launches a step once more that was launched with tokens which then were corrected.

        It writes the same places of the KV cache, and draws with the same random numbers.
        """
        batch, launched = self.last_batch, self.result_queue.pop()
        assert batch is not None
        with self.forward_stream_ctx:
            self._keep_tokens(batch.reqs, batch.req_pool_indices_cpu.tolist())
        self.sampler.rows = launched.rows
        result = super().run_batch(batch)
        self._apply_war_barrier()
        self.result_queue.append(launched._replace(result=result, choice=self.sampler.choice))

    def _keep_tokens(self, reqs: Sequence[ScheduledRequest], places: Sequence[int]) -> None:
        """Writes the last tokens of requests where SGLang reads the inputs of their next step."""
        # A request that was aborted may have none.
        tokens = [req.output_ids[-1] if req.output_ids else 0 for req in reqs]
        packed = to_device(torch.tensor([places, tokens], dtype=torch.long), torch.device(self.device))
        self.future_map.stash_bonus_tokens(packed[0], packed[1])

    def run_batch(self, batch: ScheduleBatch, *args: Any, **kwargs: Any) -> Any:
        vocab_size = self.model_config.vocab_size
        self.sampler.rows = [
            req.request.sampling_row(vocab_size) if samples(batch, req) else None for req in batch.reqs
        ]
        if batch.return_logprob and batch.forward_mode.is_extend():
            name_prompt_tokens(batch)
        decoder = self._decoder
        spans: list[SequenceSpan] = []
        if decoder is not None:
            if batch.forward_mode.is_extend():
                decoder.inputs = extend_inputs(batch)
                spans = decoder.inputs.spans
            elif self._strategy is not None:
                spans = decode_spans(batch)
                decoder.load_step(spans)
            elif self._captures_all:
                spans = decode_spans(batch)
        result = super().run_batch(batch, *args, **kwargs)
        if decoder is not None:
            # Prompts' media may be large.
            decoder.inputs = None
            self._collect_captured(decoder, batch, spans)
        if not self.enable_overlap:
            choice = self.sampler.choice
            # The only time in a step that the host waits for the device.
            result.next_token_ids = choice.read()
            if choice.corrected:
                # SGLang has kept the next step's input.
                self.future_map.stash_bonus_tokens(batch.req_pool_indices, choice.tokens)
        if decoder is not None and self._strategy is not None:
            self._feed_back(decoder, self._strategy, spans, result.next_token_ids.tolist())
        return result

    def _collect_captured(
        self, decoder: OmniDecoder, batch: ScheduleBatch, spans: Sequence[SequenceSpan]
    ) -> None:
        if decoder.captured is None:
            return
        for index, state in captures_due(spans):
            slots = self.req_to_token_pool.req_to_token[batch.reqs[index].kv.req_pool_idx]
            state.media_hidden = decoder.captured[
                slots[to_device(state.media_positions, slots.device)].long()
            ]
        for index, state, first, end in rows_due(spans):
            slots = self.req_to_token_pool.req_to_token[batch.reqs[index].kv.req_pool_idx]
            state.add_rows(decoder.captured[slots[first:end].long()])

    def _feed_back(
        self,
        decoder: OmniDecoder,
        strategy: FeedbackStrategy,
        spans: Sequence[SequenceSpan],
        tokens: Sequence[int],
    ) -> None:
        sampled = [index for index, span in enumerate(spans) if span.samples]
        if not sampled:
            return
        rows = decoder.output_rows[: len(spans)]
        if len(sampled) < len(spans):
            rows = rows[to_device(torch.tensor(sampled), rows.device)]
        decoder.feedback.output_rows = rows
        scheduled = FeedbackBatch(spans, [tokens[index] for index in sampled])
        strategy.extract_output(decoder, scheduled, [spans[index] for index in sampled], self.outbox)

    @property
    def is_stuck(self) -> bool:
        """True if a request is in line and no other holds KV that it might free."""
        batches = (self.running_batch, self.last_batch)
        others = (req for batch in batches if batch is not None for req in batch.reqs)
        blocked = self._first_in_line
        if self.result_queue or blocked is None:
            return False
        return all(req is blocked or req.finished() for req in others)

    @property
    def _first_in_line(self) -> ScheduledRequest | None:
        if self.chunked_req is not None:
            return self.chunked_req
        return self.waiting_queue[0] if self.waiting_queue else None

    def give_up(self, pool_tokens: int) -> list[ScheduledRequest]:
        """Ends the first request in line, for which no other can free room, so that the others go on.

        Admission refuses what the pool cannot hold; this keeps a mistake there, or lost KV, from stopping the
        engine.
        """
        req = self._first_in_line
        assert req is not None
        free = self.token_to_kv_pool_allocator.available_size() + self.tree_cache.evictable_size()
        self.remove(req)
        req.took_token = False
        req.request.finish_reason = "abort"
        req.request.failure = never_runs(req.request, free, pool_tokens)
        self.running_batch.batch_is_full = False
        return [req]

    def update_running_batch(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        if self.result_queue and not batch.check_decode_mem():
            # Some may end with their unread tokens; others are about to lose their KV, but not these tokens.
            self._read()
        ready = [index for index, req in enumerate(batch.reqs) if req.is_ready]
        if not ready:
            return None
        if len(ready) < len(batch.reqs):
            self._hold(batch, [index for index in range(len(batch.reqs)) if index not in ready])
            batch.filter_batch(keep_indices=ready)
            while self._held is not None and not batch.check_decode_mem():
                self._evict_held()
        return super().update_running_batch(batch)

    def _hold(self, batch: ScheduleBatch, indices: list[int]) -> None:
        held = copy.copy(batch)
        # Filtering a batch filters its sampling parameters in place.
        held.sampling_info = dataclasses.replace(batch.sampling_info)
        held.filter_batch(keep_indices=indices)
        self._held = held

    def _evict_held(self) -> None:
        """Frees the KV of the held request with the fewest tokens, and puts the request back in line."""
        held = self._held
        assert held is not None
        index = min(range(len(held.reqs)), key=lambda i: held.reqs[i].request.num_tokens)
        req = held.reqs[index]
        held.release_req(index, len(held.reqs) - 1)
        held.filter_batch(keep_indices=[i for i in range(len(held.reqs)) if i != index])
        if held.is_empty():
            self._held = None
        self._add_request_to_queue(req, is_retracted=True)

    def _merge_held(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        self.running_batch.filter_batch()
        if self.running_batch.is_empty():
            self.running_batch = held
        else:
            self.running_batch.merge_batch(held)

    def send_abort_output(self, abort_req: AbortReq, req: Req) -> None:
        """Called when SGLang has ended a request that does not fit the pool even alone, and freed its KV."""
        req.took_token = False
        req.update_finish_state()
        size = self.token_to_kv_pool_allocator.size
        free = self.token_to_kv_pool_allocator.available_size() + self.tree_cache.evictable_size()
        req.request.failure = never_runs(req.request, free, size)
        self._stepped[req] = None


class _NoOutput(SchedulerOutputStreamer):
    """Sends nothing: results are read from the requests themselves."""

    def stream_output(self, reqs: list[Req], return_logprob: bool, skip_req: Req | None = None) -> None:
        pass
