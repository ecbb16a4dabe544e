"""A language model's memory is counted as an omni model's is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake_gpus import fake_gpus
from published_shapes import write_text_model

from sglang_omni.config import validate_config
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import fit_memory
from sglang_omni.config.plan.memory_plan import GIB, refusal
from sglang_omni.models.decoder.memory import text_model_demand
from sglang_omni.models.text.config import TextPipelineConfig


def test_the_kv_cache_is_what_the_weights_leave(tmp_path: Path) -> None:
    config = TextPipelineConfig(model_path=str(write_text_model(tmp_path, "Llama-3.1-8B")))
    config.stage("thinker").gpu = 0
    plan = fit_memory(config, fake_gpus("L4"))
    assert plan is not None
    assert plan.fits
    validate_config(config)
    args = merge_factory_args(config.stage("thinker"), config)
    assert 25_000 < args["max_total_tokens"] < 50_000


def test_prompts_are_captured_where_there_is_room(tmp_path: Path) -> None:
    path = str(write_text_model(tmp_path, "Llama-3.1-8B"))
    captured, notes = [], []
    for total in (20, 24):
        config = TextPipelineConfig(model_path=path)
        config.stage("thinker").gpu = 0
        plan = fit_memory(config, [replace(gpu, total_bytes=total * GIB) for gpu in fake_gpus("L4")])
        assert plan is not None
        assert plan.fits
        validate_config(config)
        captured.append(merge_factory_args(config.stage("thinker"), config)["prefill_cuda_graph"])
        notes.append("prompts without CUDA graphs" in "".join(plan.lines()))
    assert (captured, notes) == ([False, True], [True, False])


def test_as_many_requests_run_as_the_cache_is_for(tmp_path: Path) -> None:
    path = str(write_text_model(tmp_path, "Llama-3.1-8B"))

    def requests(kind: str, **given: int | float) -> int:
        config = TextPipelineConfig(model_path=path, runtime_overrides={"thinker": given} if given else {})
        config.stage("thinker").gpu = 0
        plan = fit_memory(config, fake_gpus(kind))
        assert plan is not None
        assert plan.fits
        (stage,) = plan.gpus[0].stages
        chosen = merge_factory_args(config.stage("thinker"), config)["max_running_requests"]
        assert stage.setting.requests == chosen
        return int(chosen)

    assert {kind: requests(kind) for kind in ("L4", "L40S", "A100 80GB")} == {
        **{"L4": 64, "L40S": 256, "A100 80GB": 256},
    }
    assert requests("A100 80GB", max_running_requests=7) == 7
    assert requests("A100 80GB", max_running_requests=500) == 500
    # By the cache that is asked for.
    assert requests("A100 80GB", max_total_tokens=70_000) == 128
    assert requests("A100 80GB", max_total_tokens=20_000) == 64
    assert requests("A100 80GB", mem_fraction_static=0.25) == 64


def test_what_the_config_says_of_prompts_is_counted(tmp_path: Path) -> None:
    path = write_text_model(tmp_path, "Llama-3.1-8B")
    for given in (True, False):
        settings = text_model_demand(path, {"prefill_cuda_graph": given}).settings
        assert {setting.prompt_graphs for setting in settings} == {given}
    for others in ({"engine": "omni"}, {"cuda_graph": False}):
        assert {setting.prompt_graphs for setting in text_model_demand(path, others).settings} == {None}


def test_what_does_not_fit_may_be_split(tmp_path: Path) -> None:
    config = TextPipelineConfig(model_path=str(write_text_model(tmp_path, "Qwen3-30B-A3B")))
    config.stage("thinker").gpu = 0
    plan = fit_memory(config, fake_gpus("RTX 4090", 4))
    assert plan is not None
    assert not plan.fits
    assert "--tp-size 4" in plan.changes
    assert "--tp-size 2" not in plan.changes
    assert "MISSING" in refusal(plan)
