"""Failures of a GPU in real schedulers: a lost one ends the scheduler, too little memory ends a request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import pytest
import torch
from engine_runs import finish
from scheduler_runs import WAIT_S
from text_engines import greedy, prompts, text_engine
from tiny_checkpoints import TinyCheckpoint

from sglang_omni import gpu_faults
from sglang_omni.engines.cache import OutputCache
from sglang_omni.engines.encoder import EncoderEngine, EncoderRequest, ItemInfo
from sglang_omni.executors import PreprocessingExecutor
from sglang_omni.gpu_faults import GpuLost, after_failure
from sglang_omni.proto import OmniRequest, RequestError, StagePayload, Unavailable
from sglang_omni.scheduling.messages import IncomingMessage, Scheduler
from sglang_omni.scheduling.omni_scheduler import OmniScheduler
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.stream_scheduler import BatchItem, StreamScheduler, StreamSession
from sglang_omni.scheduling.worker_pool import WorkerPool

STICKY = "CUDA error: an illegal memory access was encountered"


class Gpu:
    """A GPU that is in use, and how it answers ``synchronize``."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.freed = 0

    def synchronize(self) -> None:
        if self.error is not None:
            raise self.error

    def empty_cache(self) -> None:
        self.freed += 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(gpu_faults, "is_cuda_in_use", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", gpu.empty_cache)
    return gpu


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def serve(scheduler: Scheduler, *request_ids: str, data: Any = None) -> BaseException | None:
    """Runs a scheduler that has these requests until it has answered them. Returns what ended it before."""
    for request_id in request_ids:
        payload = StagePayload(request_id, OmniRequest(None), data)
        scheduler.inbox.put(IncomingMessage(request_id, "new_request", payload))
    crashed: list[BaseException] = []

    def start() -> None:
        try:
            scheduler.start()
        except BaseException as exc:  # noqa: BLE001  what the stage would see
            crashed.append(exc)

    thread = threading.Thread(target=start)
    thread.start()
    answers: dict[str, Any] = {}
    scheduler.answers = answers  # type: ignore[attr-defined]
    while len(answers) < len(request_ids) and (thread.is_alive() or scheduler.outbox.qsize()):
        try:
            message = scheduler.outbox.get(timeout=0.05)
        except Empty:
            continue
        answers[message.request_id] = message.data
    scheduler.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return crashed[0] if crashed else None


class Session(StreamSession):
    """A batch item for each request."""

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        self.item = BatchItem("one kind", 8)
        self.item.request_id = payload.request_id
        yield self.item

    def result(self) -> str:
        return "done"


def stream_scheduler(compute: Callable[[list[str]], Any]) -> StreamScheduler:
    return StreamScheduler(
        Session,
        expects_stream=lambda payload: False,
        wants_chunks=lambda payload: False,
        batch_compute_fn=lambda items: compute([item.request_id for item in items]),
    )


def simple_scheduler(compute: Callable[[list[str]], Any]) -> SimpleScheduler:
    def batch(payloads: list[StagePayload]) -> list[str]:
        compute([payload.request_id for payload in payloads])
        return ["done"] * len(payloads)

    return SimpleScheduler(
        lambda payload: batch([payload])[0], batch_compute_fn=batch, max_batch_size=8, max_batch_wait_ms=20
    )


class Encoder:
    """Items are the ids of their requests."""

    def __init__(self, compute: Callable[[list[str]], Any]) -> None:
        self.compute = compute

    def info(self, item: str) -> ItemInfo:
        return ItemInfo(item.encode(), 1)

    def encode(self, items: Any) -> list[tuple[torch.Tensor, ...]]:
        self.compute(list(items))
        return [(torch.zeros(1),) for _ in items]


def encoder_scheduler(compute: Callable[[list[str]], Any]) -> OmniScheduler:
    return OmniScheduler(
        EncoderEngine(Encoder(compute), OutputCache(0), max_batch_cost=100),
        lambda payload: EncoderRequest(payload.request_id, [payload.request_id]),
        lambda payload, request: StagePayload(payload.request_id, payload.request, "done"),
    )


SCHEDULERS = [stream_scheduler, simple_scheduler, encoder_scheduler]


def raising(error: Exception) -> Callable[[list[str]], None]:
    def compute(request_ids: list[str]) -> None:
        raise error

    return compute


@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_lost_gpu_ends_the_scheduler(gpu: Gpu, make: Callable[..., Any]) -> None:
    gpu.error = torch.AcceleratorError(f"{STICKY}\nCUDA kernel errors might be reported elsewhere")
    scheduler = make(raising(RuntimeError("cuBLAS failed")))
    crash = serve(scheduler, "a", "b")
    assert isinstance(crash, GpuLost)
    assert str(crash).endswith(STICKY)
    assert scheduler.answers == {}


@pytest.mark.parametrize("make", SCHEDULERS)
def test_an_error_that_passes_is_its_requests_own(gpu: Gpu, make: Callable[..., Any]) -> None:
    """A launch with a wrong configuration is an AcceleratorError too, and the GPU goes on working."""
    error = torch.AcceleratorError("CUDA error: invalid configuration argument")
    scheduler = make(raising(error))
    assert serve(scheduler, "a", "b") is None
    assert scheduler.answers == {"a": error, "b": error}


@pytest.mark.parametrize("make", SCHEDULERS)
def test_too_little_memory_for_a_batch_ends_the_item_that_needs_it(
    gpu: Gpu, make: Callable[..., Any]
) -> None:
    batches = []

    def compute(request_ids: list[str]) -> None:
        batches.append(request_ids)
        if "large" in request_ids:
            raise out_of_memory()

    scheduler = make(compute)
    assert serve(scheduler, "a", "large", "b") is None
    assert batches == [["a", "large", "b"], ["a"], ["large"], ["b"]]
    assert isinstance(scheduler.answers.pop("large"), torch.OutOfMemoryError)
    assert scheduler.answers.keys() == {"a", "b"}
    assert not any(isinstance(answer, Exception) for answer in scheduler.answers.values())
    assert gpu.freed == 2


def test_a_lost_gpu_ends_all_workers_of_a_stage(gpu: Gpu) -> None:
    gpu.error = torch.AcceleratorError(STICKY)
    pool = WorkerPool([simple_scheduler(raising(RuntimeError("no"))) for _ in range(2)])
    assert isinstance(serve(pool, "a"), GpuLost)
    several = SimpleScheduler(lambda payload: raising(RuntimeError("no"))([]), max_concurrency=3)
    assert isinstance(serve(several, "a"), GpuLost)


def test_a_lost_gpu_ends_a_stage_of_the_legacy_form(gpu: Gpu) -> None:
    gpu.error = torch.AcceleratorError(STICKY)
    executor = PreprocessingExecutor(lambda payload: raising(RuntimeError("no"))([]))
    assert isinstance(serve(executor.as_scheduler(), "a"), GpuLost)


@pytest.mark.parametrize("where", ["build", "result"])
def test_a_lost_gpu_is_found_by_the_callbacks_of_an_engines_stage(gpu: Gpu, where: str) -> None:
    """Copies to and from the GPU are the first to tell of an earlier kernel's fault."""
    gpu.error = error = torch.AcceleratorError(STICKY)

    def callback(*_: Any) -> Any:
        raise error

    scheduler = encoder_scheduler(lambda request_ids: None)
    setattr(scheduler, "_build_request" if where == "build" else "_adapt_result", callback)
    assert isinstance(serve(scheduler, "a"), GpuLost)


def test_without_a_gpu_to_ask_an_accelerators_error_is_taken_at_its_word() -> None:
    with pytest.raises(GpuLost, match="illegal memory access"):
        after_failure(torch.AcceleratorError(STICKY))
    after_failure(RuntimeError("an ordinary error"))
    after_failure(RequestError("too long"))


def test_the_gpu_is_not_asked_about_a_request_at_fault(gpu: Gpu) -> None:
    gpu.error = torch.AcceleratorError(STICKY)
    after_failure(RequestError("too long"))


def test_memory_that_is_short_for_the_question_itself_is_no_lost_gpu(gpu: Gpu) -> None:
    gpu.error = out_of_memory()
    after_failure(RuntimeError("an ordinary error"))


def test_the_tensors_of_a_failed_step_are_freed_with_its_memory(gpu: Gpu) -> None:
    freed = threading.Event()

    class Tensor:
        def __del__(self) -> None:
            freed.set()

    def step() -> None:
        activations = Tensor()
        assert activations
        raise out_of_memory()

    error: Exception | None = None
    try:
        step()
    except torch.OutOfMemoryError as exc:
        error = exc
        assert not freed.is_set()
        after_failure(exc)
    assert error is not None
    assert freed.is_set()


def test_an_engine_ends_the_newest_request_of_a_step_that_needs_too_much_memory(
    gpu: Gpu, tiny_checkpoint: Callable[..., TinyCheckpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' tokens are as if it had never been."""
    checkpoint = tiny_checkpoint("llama")
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=400)
    requests = [greedy(str(n), prompt, 8) for n, prompt in enumerate(prompts(3, [9, 14, 6]))]
    execute, steps = engine.runner.execute, []

    def execute_or_fail(forward: Any, *sampling: Any) -> list[int]:
        steps.append(len(forward.spans))
        # After the step has written its keys and values.
        tokens = execute(forward, *sampling)
        if len(steps) in (1, 4):
            raise out_of_memory()
        return tokens

    monkeypatch.setattr(engine.runner, "execute", execute_or_fail)
    for request in requests:
        engine.add(request)
    finish(engine)
    assert steps[:5] == [3, 2, 2, 2, 1]
    first, second, third = requests
    assert first.output_token_ids == checkpoint.greedy(first.prompt_token_ids, 8)
    assert [second.finish_reason, third.finish_reason] == ["abort", "abort"]
    assert isinstance(third.failure, Unavailable)
    assert engine.stats()["kv_used_tokens"] == 0
    assert gpu.freed == 2
    # Alone, a request has itself to blame.
    steps[:] = [0] * 3
    engine.add(greedy("alone", [5, 9, 2], 2))
    with pytest.raises(torch.OutOfMemoryError):
        finish(engine)
