"""docs/own-pipeline.md: all that it shows is run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from own_pipelines import ShownPage, is_as_shown, run_shown, served

from sglang_omni.config import ServesConfig

PAGE = ShownPage("own-pipeline.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own")
    (path / "echo.py").write_text(PAGE.of("python")[0])
    (path / "echo.yaml").write_text(PAGE.of("yaml")[0])
    (path / "in_process.py").write_text(PAGE.of("python")[1])
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with served(folder, "--config", "echo.yaml") as url:
        yield url


def test_every_block_is_run_below() -> None:
    assert [kind for kind, _ in PAGE.blocks] == ["console", "python", "yaml", "console", "text", "python"]
    assert len(PAGE.commands()) == 4


def test_the_commands_print_what_is_shown(folder: Path, url: str) -> None:
    for command, shown in PAGE.commands():
        output = run_shown(command, folder, url)
        assert is_as_shown(output, shown), f"{command}\n{output}\nis not\n{shown}"


def test_the_program_runs(folder: Path) -> None:
    done = subprocess.run([sys.executable, "in_process.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_function_refuses_is_the_callers_fault(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 21}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "more than 20 characters"


def test_what_it_does_not_serve_is_refused_by_name(url: str) -> None:
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400,
        "the model 'echo' does not do completion; it does chat, speech, transcription",
    )
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert "takes no image input; it takes text" in answer.json()["error"]["message"]


def test_every_field_of_serves_is_listed() -> None:
    section = (Path(__file__).parents[2] / "docs/own-pipeline.md").read_text().split("## What it serves")[1]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert rows == list(ServesConfig.model_fields)


def test_the_errors_read_as_shown(tmp_path: Path) -> None:
    source = (
        "import numpy\n"
        "WRONG = [{'reply': 3}, {'audio_data': numpy.zeros(3, numpy.int16), 'sample_rate': 8000}]\n"
        "def load_echo(limit):\n"
        "    return lambda payload: WRONG[int(payload.request.inputs['messages'][0]['content'])]\n"
    )
    (tmp_path / "echo.py").write_text(source)
    (tmp_path / "echo.yaml").write_text(PAGE.of("yaml")[0])
    with served(tmp_path, "--config", "echo.yaml") as url:
        for index, line in enumerate(PAGE.of("text")[0].splitlines()):
            for stream in (False, True):
                body = {"messages": [{"role": "user", "content": str(index)}], "stream": stream}
                answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
                assert answer.json()["error"]["message"] == line
