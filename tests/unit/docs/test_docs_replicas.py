"""The page about replicas says what is so: its example runs, and errors read as shown."""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented import Page, run

from sglang_omni.config import AutoscalingConfig, ConfigError, PipelineConfig, StageConfig, validate_config

PAGE = Page("replicas.md")
block = PAGE.block


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return PAGE.save_example(tmp_path, "my_stages.py")


def test_the_command_prints_what_is_shown(folder: Path) -> None:
    ((command, output),) = PAGE.commands()
    done = run(folder, *command.split())
    assert (done.stdout, done.stderr) == (output, "")


def test_the_program_runs(folder: Path) -> None:
    (folder / "main.py").write_text(block("python", 1))
    done = run(folder, "main.py")
    assert done.returncode == 0, done.stderr
    assert literal_eval(done.stdout) == [{"spoken": 4}] * 6


def test_the_stages_that_are_shown_are_ones() -> None:
    (split,) = yaml.safe_load(block("yaml", 1))
    stage = StageConfig(**split)
    assert len(stage.gpu_ids) == stage.tp_size * stage.num_replicas == 4
    (scaled,) = yaml.safe_load(block("yaml", 2))
    assert StageConfig(**scaled).autoscaling == AutoscalingConfig(max_replicas=3)


def test_the_table_lists_the_fields_and_their_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE.text, re.M)
    fields = AutoscalingConfig.model_fields
    shown = {
        name: "required" if field.is_required() else str(field.default) for name, field in fields.items()
    }
    assert dict(rows) == shown


def wrong(folder: Path, stage: str, **fields: Any) -> str:
    """What is said of the example with other fields in one stage."""
    content = yaml.safe_load((folder / "pipeline.yaml").read_text())
    by_name = {entry["name"]: entry for entry in content["stages"]}
    by_name[stage] |= fields
    with pytest.raises((ValueError, ConfigError)) as raised:
        validate_config(PipelineConfig.from_dict(content))
    return str(raised.value)


def test_the_errors_read_as_shown(folder: Path) -> None:
    said = [
        wrong(folder, "speak", process="front"),
        wrong(folder, "speak", autoscaling={"max_replicas": 3}),
        wrong(folder, "speak", gpu=[0, 1]),
        wrong(folder, "speak", node=["a", "b"]),
    ]
    for text, line in zip(said, block("text").splitlines(), strict=True):
        assert line in text
