"""``sgl-omni new``: what it makes runs, and passes its own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from own_pipelines import environment

from sglang_omni.cli import main

FILES = {"pipeline.py", "pipeline.yaml", "test_pipeline.py", "conftest.py", "README.md"}


@pytest.mark.parametrize("template", ["chat", "speech", "transcribe"])
def test_a_project_passes_its_tests(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"my_{template}"
    assert main(["new", str(folder), "--template", template]) == 0
    assert {file.name for file in folder.iterdir()} == FILES
    assert f"cd {folder} && sgl-omni serve --config pipeline.yaml" in capsys.readouterr().out
    for name in ("pipeline.yaml", "README.md"):
        text = (folder / name).read_text()
        assert f"my_{template}" in text
        assert "my_pipeline" not in text
    assert len((folder / "README.md").read_text().splitlines()) == 3
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert main(["new", str(tmp_path / "mine")]) == 0
    assert {file.name for file in (tmp_path / "mine").iterdir()} == FILES


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pipeline.py").write_text("mine")
    (tmp_path / "file").touch()
    for name, reported in (
        ("mine", "exists and is not empty; give another name, or empty it"),
        ("file", "is a file; give another name"),
        ("file/mine", "cannot be made: Not a directory"),
    ):
        assert main(["new", str(tmp_path / name)]) == 1
        assert reported in capsys.readouterr().err
    assert [file.read_text() for file in (tmp_path / "mine").iterdir()] == ["mine"]


@pytest.mark.parametrize("kind", [[], ["--family"]])
@pytest.mark.parametrize("name", ["numpy", "json"])
def test_no_module_is_hidden(
    name: str, kind: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", str(tmp_path / name), *kind]) == 1
    assert f"{name!r} is a module of this Python" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "hint"), [("my-pipeline", "my_pipeline"), ("2b", "my_pipeline"), ("class", "my_pipeline")]
)
def test_a_name_must_be_one(name: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err == (
        f"sgl-omni new: {name!r} is not a name: it needs letters, digits and underscores; as {hint!r}\n"
    )
    assert list(tmp_path.iterdir()) == []
