"""Pipelines that share a GPU with one another get their shares of it together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from published_shapes import write_text_model

from sglang_omni.cascade.config import CascadePipelineConfig
from sglang_omni.cascade.local import as_part
from sglang_omni.config import PipelineConfig, StageConfig, validate_config
from sglang_omni.config.factories.factory_args import resolve_stage_factory_args
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import GIB, MIB, Setting
from sglang_omni.gpus import Gpu


class CountedPart(PipelineConfig):
    """A pipeline with a decoder of 2 GiB, whose KV pool takes what it gets."""

    tasks: ClassVar[tuple[str, ...]] = ("transcription", "speech")

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        return MemoryDemand(
            2 * GIB,
            GIB,
            token_bytes=MIB,
            settings=(Setting(16, 512, 0, 64),),
            least_tokens=64,
            most_tokens=10**6,
        )

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        yield from ()


def counted(gpu: int) -> PipelineConfig:
    stage = StageConfig(name="decode", process="d", factory="some.factory", terminal=True, gpu=gpu)
    return CountedPart(model_path="x", stages=[stage])


def cascade(asr_gpu: int, tts_gpu: int) -> CascadePipelineConfig:
    return CascadePipelineConfig(
        asr={"pipeline": as_part("asr", counted(asr_gpu))}, tts={"pipeline": as_part("tts", counted(tts_gpu))}
    )


def gpus(count: int, gib: int) -> list[Gpu]:
    return [Gpu(index, f"GPU-{index}", "some GPU", gib * GIB, (9, 0)) for index in range(count)]


@pytest.mark.parametrize(("places", "count"), [((0, 0), 1), ((0, 1), 2)])
def test_shares_are_of_the_gpu_that_is_shared(places: tuple[int, int], count: int) -> None:
    config = cascade(*places)
    plan = config.share_gpus(gpus(count, 40))
    assert plan is not None
    assert plan.fits
    assert [stage.stage for gpu in plan.gpus for stage in gpu.stages] == ["asr.decode", "tts.decode"]
    shares = []
    for name, stage in (("asr", "transcribe"), ("tts", "speak")):
        reported = resolve_stage_factory_args(config.stage(stage), config)["part"]["pipeline"]
        assert reported == getattr(config, name).pipeline
        (decode,) = PipelineConfig.from_dict(reported).stages
        shares.append(decode.runtime.resources.total_gpu_memory_fraction or 0.0)
        assert decode.factory_args["max_total_tokens"] > 64
    assert 0.9 * count < sum(shares) <= count
    assert max(shares) <= 1 / (2 if count == 1 else 1) + 0.01


def test_the_language_model_takes_what_is_chosen_for_it(tmp_path: Path) -> None:
    config = CascadePipelineConfig(model_path=str(write_text_model(tmp_path, "Llama-3.1-8B")))
    config.stage("thinker").gpu = 0
    plan = config.share_gpus(gpus(1, 24))
    assert plan is not None
    assert plan.fits
    validate_config(config)
    args = resolve_stage_factory_args(config.stage("thinker"), config)
    assert args["chunked_prefill_size"] > 512


def test_parts_that_do_not_fit_are_named() -> None:
    plan = cascade(0, 0).share_gpus(gpus(1, 6))
    assert plan is not None
    assert not plan.fits
    assert "tts.decode" in "\n".join(plan.lines())


def test_a_part_must_do_what_it_is_for() -> None:
    with pytest.raises(ValueError, match="and not speech"):
        as_part("tts", PipelineConfig(model_path="x", stages=counted(0).stages, serves={"tasks": ["chat"]}))
    own = CascadePipelineConfig(asr={"pipeline": as_part("asr", counted(0))}).pipelines()["asr"]
    assert [stage.process for stage in own.stages] == ["asr.d"]
