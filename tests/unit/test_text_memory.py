"""A language model's memory is counted as an omni model's is."""

from __future__ import annotations

from pathlib import Path

from fake_gpus import fake_gpus
from published_shapes import write_text_model

from sglang_omni.config import validate_config
from sglang_omni.config.factory_args import merge_factory_args
from sglang_omni.config.memory import fit_memory, refusal
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


def test_what_does_not_fit_may_be_split(tmp_path: Path) -> None:
    config = TextPipelineConfig(model_path=str(write_text_model(tmp_path, "Qwen3-30B-A3B")))
    config.stage("thinker").gpu = 0
    plan = fit_memory(config, fake_gpus("RTX 4090", 4))
    assert plan is not None
    assert not plan.fits
    assert "--tp-size 4" in plan.changes
    assert "--tp-size 2" not in plan.changes
    assert "MISSING" in refusal(plan)
