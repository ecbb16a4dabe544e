"""Names by which code and configs written for this system know its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_omni.config import load_config
from sglang_omni.models.qwen3_omni.config import Qwen3OmniColocatedPipelineConfig
from sglang_omni.pipeline import stage_workers
from sglang_omni.pipeline.processes.supervisor import SupervisedProcess
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.pipeline.stage.runtime import Stage

COLOCATED = "Qwen3OmniSpeechColocatedPipelineConfig"


@pytest.mark.parametrize("name", [COLOCATED, f"sglang_omni.models.qwen3_omni.config.{COLOCATED}"])
def test_a_file_may_name_the_colocated_config_as_the_description_does(tmp_path: Path, name: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"config_cls: {name}\nmodel_path: some/model\n")
    loaded = load_config(file)
    assert type(loaded) is Qwen3OmniColocatedPipelineConfig
    assert {stage.process for stage in loaded.stages} == {"all"}


def test_the_processes_of_a_stage_are_a_stage_group() -> None:
    assert stage_workers.StageGroup is SupervisedProcess
    assert stage_workers.WorkerSpec is ProcessSpec
    with pytest.raises(AttributeError, match="has no attribute 'StageGrup'"):
        stage_workers.StageGrup  # noqa: B018


def test_a_stage_takes_messages_by_the_descriptions_names() -> None:
    assert callable(Stage._on_data_ready)
    assert callable(Stage._on_stream_chunk)
