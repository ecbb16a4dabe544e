"""The default pipeline's config: it is valid, survives saving, and its functions exist."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.config.imports import signature_of
from sglang_omni.config.plan.placement import build_stage_placement_plan
from sglang_omni.config.plan.topology import build_process_topology_plan
from sglang_omni.models.speech_chat.config import BUNDLED, SpeechChatPipelineConfig


def resolve(dotted: str) -> object:
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def test_the_defaults_are_a_whole_pipeline() -> None:
    config = SpeechChatPipelineConfig()

    assert config.model_path == BUNDLED
    assert config.resolved_entry_stage == "preprocess"
    assert config.terminal_stages == ["decode", "speak"]


def test_the_models_run_in_processes_of_their_own() -> None:
    config = SpeechChatPipelineConfig()
    plan = build_process_topology_plan(config, build_stage_placement_plan(config))

    assert plan.stage_to_process == {
        "preprocess": "io",
        "decode": "io",
        "transcribe": "transcribe",
        "thinker": "thinker",
        "speak": "speak",
    }


@pytest.mark.parametrize("stage", SpeechChatPipelineConfig().stages, ids=lambda stage: stage.name)
def test_the_functions_a_stage_names_exist(stage: StageConfig) -> None:
    paths = [stage.factory, stage.route_fn, stage.stream_done_to_fn, *stage.project_payload.values()]

    assert all(callable(resolve(path)) for path in paths if path)
    # What the runtime sets by name must be there to be set.
    assert all(map(signature_of(resolve(stage.factory)).accepts, stage.factory_args))


def test_the_config_survives_saving(tmp_path: Path) -> None:
    config = SpeechChatPipelineConfig(model_path="/some/checkpoint")

    loaded = PipelineConfig.from_dict(config.model_dump(mode="json"))

    assert isinstance(loaded, SpeechChatPipelineConfig)
    assert loaded == config
