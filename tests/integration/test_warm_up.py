"""The steps before the first request: they compute what a request computes, and nothing is left of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_runs import finish
from qwen3_omni_oracle import Oracle
from sglang_engines import KINDS, assert_empty, engines
from text_engines import greedy, prompts
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.engines.options import DecoderSpec, EngineKind
from sglang_omni.engines.warm_up import text_requests, warm_up
from sglang_omni.gpu_faults import GpuLost
from sglang_omni.models.qwen3_omni import encoders, stages
from sglang_omni.pipeline.specs import StageLaunchConfig
from sglang_omni.pipeline.stage.build import build_scheduler
from sglang_omni.pipeline.stage.warm_up import SETTING
from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
from sglang_omni.scheduling.omni_scheduler import OmniScheduler


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_is_as_it_was(kind: EngineKind, tiny_checkpoint: Callable[..., TinyCheckpoint]) -> None:
    checkpoint = tiny_checkpoint("llama")
    with engines(kind) as build:
        engine = build(DecoderSpec.from_dir(checkpoint.path))
        before = engine.stats()
        requests = text_requests(engine)
        # Chunks of 64 tokens: the longest is one step.
        assert [len(request.prompt_token_ids) for request in requests] == [1, 33, 64]
        warm_up(engine, requests)
        assert [len(request.output_token_ids) for request in requests] == [2, 1, 1]
        assert engine.stats() == before
        assert_empty(engine)
        asked = [greedy(str(n), prompt, 8) for n, prompt in enumerate(prompts(5, [3, 17]))]
        for each in asked:
            engine.add(each)
        finish(engine)
        for each in asked:
            assert each.output_token_ids == checkpoint.greedy(each.prompt_token_ids, 8)
            assert each.cached_tokens == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_is_as_it_was_after_a_failure(
    kind: EngineKind, tiny_checkpoint: Callable[..., TinyCheckpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_checkpoint("llama")
    with engines(kind) as build:
        engine = build(DecoderSpec.from_dir(checkpoint.path))
        before = engine.stats()

        def fail(*_: Any) -> None:
            raise RuntimeError("no kernel")

        target = engine.runner if kind == "omni" else engine.scheduler
        with monkeypatch.context() as patch:
            patch.setattr(target, "execute" if kind == "omni" else "run_batch", fail)
            with pytest.raises(RuntimeError, match="no kernel"):
                warm_up(engine, text_requests(engine))
        assert engine.stats() == before
        (prompt,) = prompts(5, [9])
        request = greedy("next", prompt, 8)
        engine.add(request)
        finish(engine)
        assert request.output_token_ids == checkpoint.greedy(prompt, 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: encoders.create_image_encoder(path),
        lambda path: encoders.create_audio_encoder(path),
        lambda path: stages.create_thinker(path, engine="omni"),
        lambda path: stages.create_talker(path, engine="omni"),
    ],
    ids=["image encoder", "audio encoder", "thinker", "talker"],
)
def test_the_stages_of_qwen3_omni_take_steps(
    make: Callable[..., OmniScheduler], qwen3_omni: Callable[..., Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make(str(qwen3_omni().path))
    engine, steps = scheduler.engine, []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: steps.append(step()) or steps[-1])
    before = engine.stats()
    scheduler.warm_up()
    assert steps[-1][0].finish_reason in ("stop", "length")
    assert not engine.has_work
    assert scheduler.stats() == engine.stats() == before


def test_the_codec_decodes_chunks_of_all_lengths(qwen3_omni: Callable[..., Oracle]) -> None:
    scheduler = stages.create_code2wav(str(qwen3_omni().path), chunk_size=5)
    lengths: list[int] = []

    class Recorder(type(scheduler.model)):  # type: ignore[misc]
        def open_stream(self) -> Any:
            stream = super().open_stream()
            decode = stream.decode
            stream.decode = lambda codes: lengths.append(codes.shape[-1]) or decode(codes)
            return stream

    def samples() -> torch.Tensor:
        codes = torch.arange(6).reshape(1, -1, 3) % 3
        groups = scheduler._num_code_groups
        return scheduler.model.open_stream().decode(codes[:, :1].expand(1, groups, 3).contiguous())

    before = samples()
    stats = scheduler.stats()
    scheduler.model.__class__ = Recorder
    scheduler.warm_up()
    assert lengths == [2, 4, 5]
    lengths.clear()
    assert torch.equal(samples(), before)
    assert scheduler.stats() == stats
    # A vocoder of unknown codes is left as it is.
    Code2WavScheduler(scheduler.model, "cpu", left_context_size=None).warm_up()
    assert lengths == [3]


class Warm:
    """A scheduler that counts."""

    def __init__(self, error: Exception | None) -> None:
        self.inbox = self.outbox = None
        self.error = error
        self.times = 0

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abort(self, request_id: str) -> None: ...

    def warm_up(self) -> None:
        self.times += 1
        if self.error is not None:
            raise self.error


def factory(gpu_id: int | None = None, tp_rank: int = 0, tp_size: int = 1) -> Warm:
    return Warm(factory.error)


factory.error = None


def built(gpu: int | None, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> int:
    monkeypatch.setattr(factory, "error", error)
    stage = StageConfig(name="a", factory=f"{__name__}.factory", process="a", terminal=True)
    config = PipelineConfig(model_path="m", stages=[stage])
    return build_scheduler(StageLaunchConfig("a", stage, gpu_id=gpu), config).times


def test_a_stage_is_warmed_up_on_a_gpu_or_if_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    assert (built(0, monkeypatch), built(None, monkeypatch)) == (1, 0)
    monkeypatch.setenv(SETTING, "1")
    assert (built(0, monkeypatch), built(None, monkeypatch)) == (1, 1)
    monkeypatch.setenv(SETTING, "0")
    assert (built(0, monkeypatch), built(None, monkeypatch)) == (0, 0)


def test_a_failed_warm_up_is_logged_and_a_lost_gpu_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SETTING, "1")
    with caplog.at_level(logging.WARNING):
        assert built(None, monkeypatch, RuntimeError("no kernel image")) == 1
    assert "Stage a: its warm-up failed" in caplog.text
    assert "no kernel image" in caplog.text
    with pytest.raises(GpuLost):
        built(None, monkeypatch, torch.AcceleratorError("CUDA error: device-side assert triggered"))
