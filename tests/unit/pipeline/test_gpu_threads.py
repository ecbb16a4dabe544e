"""Every thread that computes for a stage on a GPU has made that GPU its own: CUDA's current device is a
thread's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from stage_harness import harness
from waiting import until

from sglang_omni.compat.executors.preprocessing_executor import PreprocessingExecutor
from sglang_omni.compat.executors.stepped_engine import SteppedEngine
from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.engines.request import EngineRequest
from sglang_omni.pipeline.processes import child
from sglang_omni.pipeline.specs import ProcessSpec, StageLaunchConfig
from sglang_omni.pipeline.stage.build import build_scheduler
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.omni_scheduler import OmniScheduler
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.stream_scheduler import StreamScheduler, StreamSession
from sglang_omni.scheduling.threads import on_this_gpu, use_gpu
from sglang_omni.scheduling.worker_pool import WorkerPool

GPU = 3


class Recorder:
    """Attributes: seen, by what has computed: the threads it did so in, and the GPU of each."""

    def __init__(self) -> None:
        self.of_thread = threading.local()
        self.seen: dict[str, dict[int, int | None]] = {}

    def set_device(self, index: int) -> None:
        self.of_thread.gpu = index

    def compute(self, what: str) -> None:
        gpu = getattr(self.of_thread, "gpu", None)
        self.seen.setdefault(what, {})[threading.get_ident()] = gpu

    def gpus(self, what: str) -> set[int | None]:
        return set(self.seen[what].values())


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", recorder.set_device)
    return recorder


class Engine:
    """Ends each request in its first step."""

    def __init__(self, recorder: Recorder) -> None:
        self.running: list[EngineRequest] = []
        self.stepped: list[str] = []
        self.recorder = recorder
        self.waiting: list[EngineRequest] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting)

    def add(self, request: EngineRequest) -> None:
        self.recorder.compute("add")
        self.waiting.append(request)

    def abort(self, request_id: str) -> None: ...

    def flush_cache(self) -> None: ...

    def step(self) -> list[EngineRequest]:
        self.recorder.compute("step")
        done, self.waiting = self.waiting, []
        for request in done:
            request.finish_reason = "stop"
        return done

    def stats(self) -> dict[str, int]:
        return {}


def autoregressive(recorder: Recorder) -> Any:
    return OmniScheduler(
        Engine(recorder), lambda payload: EngineRequest(payload.request_id, [1]), lambda payload, _: payload
    )


def streaming(recorder: Recorder) -> Any:
    class Session(StreamSession):
        def begin(self, payload: StagePayload) -> Iterator[Any]:
            recorder.compute("step")
            yield payload.data

        def feed(self, data: Any) -> Iterator[Any]:
            yield data

        def end(self) -> Iterator[Any]:
            yield from ()

        def result(self) -> Any:
            return None

    return StreamScheduler(Session, expects_stream=lambda payload: False, wants_chunks=lambda payload: False)


def meeting(recorder: Recorder, parties: int) -> Callable[[StagePayload], StagePayload]:
    """Computes when as many threads do."""
    barrier = threading.Barrier(parties, timeout=60)

    def compute(payload: StagePayload) -> StagePayload:
        barrier.wait()
        recorder.compute("step")
        return payload

    return compute


def concurrent(recorder: Recorder) -> Any:
    return SimpleScheduler(meeting(recorder, 2), max_concurrency=2)


def pooled(recorder: Recorder) -> Any:
    compute = meeting(recorder, 4)
    return WorkerPool([SimpleScheduler(compute, max_concurrency=2) for _ in range(2)])


def executor(recorder: Recorder) -> Any:
    def process(payload: StagePayload) -> Any:
        recorder.compute("step")
        return None

    return PreprocessingExecutor(process).as_scheduler()


@pytest.mark.parametrize(
    ("make", "threads"), [(autoregressive, 1), (streaming, 1), (concurrent, 2), (pooled, 4), (executor, 1)]
)
async def test_a_schedulers_threads_compute_on_the_stages_gpu(
    recorder: Recorder, make: Callable[[Recorder], Any], threads: int
) -> None:
    async with harness(scheduler=make(recorder), gpu_id=GPU, is_terminal=True) as one:
        for index in range(threads):
            one.submit(f"r{index}", 1)
        await until(lambda: len(one.control_plane.completed) == threads)
    assert len(recorder.seen["step"]) == threads
    assert recorder.gpus("step") == {GPU}
    assert threading.get_ident() not in recorder.seen["step"]


async def test_a_stage_on_the_cpu_asks_for_no_gpu(recorder: Recorder) -> None:
    async with harness(scheduler=concurrent(recorder), is_terminal=True) as one:
        one.submit("a")
        one.submit("b")
        await until(lambda: len(one.control_plane.completed) == 2)
    assert recorder.gpus("step") == {None}


async def test_the_thread_of_an_executors_engine_computes_on_the_stages_gpu(recorder: Recorder) -> None:
    use_gpu(GPU)
    try:
        engine = SteppedEngine(Engine(recorder), print)  # type: ignore[arg-type]
        await engine.start()
        await engine.add_request("a", EngineRequest("a", [1]))
        await engine.get_result("a")
        await engine.stop()
    finally:
        forget_gpu()
    assert recorder.gpus("step") == {GPU}


async def test_a_follower_builds_and_steps_on_its_gpu(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Follower:
        def __init__(self) -> None:
            recorder.compute("build")

        def start(self) -> None:
            recorder.compute("step")

    monkeypatch.setattr(child, "build_scheduler", lambda launch, config: Follower())
    launch = StageLaunchConfig("big", role="follower", tp_rank=1, tp_size=2, gpu_id=5)
    spec = ProcessSpec("big_tp1", 0, 20, PipelineConfig.model_construct(), (launch,))
    try:
        reports = [report async for report in child.run_stages(spec)]
    finally:
        forget_gpu()
    assert {"ready": True} in reports
    # It sees its own GPU alone.
    assert recorder.seen["build"] == {threading.get_ident(): 0}
    assert recorder.gpus("step") == {0}
    assert threading.get_ident() not in recorder.seen["step"]


@pytest.mark.parametrize("gpu", [None, 5])
def test_a_stage_on_a_gpu_is_built_without_attention_of_cudnn(gpu: int | None) -> None:
    """Its kernels are planned anew for each shape, and graphs are recorded while the factory runs."""
    stage = StageConfig(name="a", factory=f"{__name__}.cudnn_of_factory", process="a", terminal=True, gpu=gpu)
    launch = StageLaunchConfig("a", stage=stage, gpu_id=gpu)
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        build_scheduler(launch, PipelineConfig(model_path="m", stages=[stage]))
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
    assert in_factory.pop() is (gpu is None)


in_factory: list[bool] = []


def cudnn_of_factory(gpu_id: int | None = None) -> SimpleScheduler:
    in_factory.append(torch.backends.cuda.cudnn_sdp_enabled())
    return SimpleScheduler(lambda payload: payload)


def test_without_a_gpu_torch_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: pytest.fail("there is no GPU"))
    use_gpu(GPU)
    forget_gpu()
    assert on_this_gpu(test_without_a_gpu_torch_is_asked_nothing) is test_without_a_gpu_torch_is_asked_nothing


def forget_gpu() -> None:
    """As a new thread: tests share theirs."""
    from sglang_omni.scheduling import threads

    del threads._this_thread.gpu
