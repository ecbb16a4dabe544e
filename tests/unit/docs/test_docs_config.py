"""The reference of the config says what is so: its example runs, and its tables list the fields there are."""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path

import pytest
import yaml
from documented import Page, run

from sglang_omni.config import PipelineConfig, StageConfig

PAGE = Page("config.md")
block = PAGE.block


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return PAGE.save_example(tmp_path, "my_pipeline.py")


def test_the_commands_print_what_is_shown(folder: Path) -> None:
    assert len(PAGE.commands()) == 2
    for command, output in PAGE.commands():
        done = run(folder, *command.split())
        assert (done.stdout, done.stderr) == (output, "")


def test_the_program_prints_what_is_shown(folder: Path) -> None:
    (folder / "main.py").write_text(block("python", 1))
    done = run(folder, "main.py")
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"# (\{.*\})$", block("python", 1), re.M)
    assert [literal_eval(line) for line in done.stdout.splitlines()] == [literal_eval(line) for line in shown]


def test_the_split_stage_is_one() -> None:
    (fields,) = yaml.safe_load(block("yaml", 1))
    assert StageConfig(**fields).tp_size == len(fields["gpu"]) == 2


def test_the_edges_are_those_shown(folder: Path) -> None:
    (folder / "nodes.yaml").write_text(block("yaml", 2))
    done = run(folder, "-m", "sglang_omni.cli", "config", "resolve", "nodes.yaml")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["edges"] == yaml.safe_load(block("yaml", 3))["edges"]


def test_the_errors_read_as_shown(folder: Path) -> None:
    source = (folder / "my_pipeline.py").read_text()
    source = source.replace('"my_pipeline.route"', '"my_pipeline.rout"')
    (folder / "my_pipeline.py").write_text(source)
    (folder / "pipeline.yaml").write_text(block("yaml").replace("volume", "volum"))
    done = run(folder, "-m", "sglang_omni.cli", "config", "validate", "pipeline.yaml")
    assert done.returncode == 1
    for line in block("text").splitlines():
        assert line in done.stderr.splitlines()


def test_the_legacy_form_is_accepted() -> None:
    config = PipelineConfig.from_dict(yaml.safe_load(block("yaml", 4)))
    assert config.is_legacy


@pytest.mark.parametrize("model", [PipelineConfig, StageConfig])
def test_every_field_is_listed(model: type) -> None:
    section = PAGE.text.split(f"## `{model.__name__}`")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    fields = set(model.model_fields) - {"parallelism"}  # named with tp_size
    assert listed == fields
