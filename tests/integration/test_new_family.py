"""``sgl-omni new NAME --family``: the package passes its tests, and is served by its checkpoint's path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from own_pipelines import environment, run_shown, served

from sglang_omni.cli import main

FILES = {
    "README.md",
    "pyproject.toml",
    *(
        f"tiny_voice/{name}.py"
        for name in ("__init__", "family", "config", "stages", "model", "tiny_checkpoint")
    ),
    *(f"tests/{name}.py" for name in ("reference", "test_parity")),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, also installed into the folder ``site``."""
    folder = tmp_path_factory.mktemp("new") / "tiny_voice"
    assert main(["new", str(folder), "--family"]) == 0
    return folder


def test_it_is_a_package_of_that_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()
    }
    assert files.keys() == FILES
    for text in files.values():
        assert "my_family" not in text.lower()
        assert "MyFamily" not in text
    assert "class TinyVoicePipelineConfig" in files["tiny_voice/config.py"]
    assert 'TinyVoiceModel = "tiny_voice.family:FAMILY"' in files["pyproject.toml"]
    assert main(["new", str(project), "--family"]) == 1
    assert "exists and is not empty" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["new", str(project), "--family", "--template", "speech"])


@pytest.mark.long
def test_its_tests_pass(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=project,
        env={**environment(), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.long
def test_it_is_installed_listed_and_served(project: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = "python -m pip install --no-index --no-deps --no-build-isolation --quiet --target site"
    run_shown(f"{install} {project}", tmp_path, "")
    run_shown("sgl-omni make-tiny-checkpoint tiny_voice checkpoint --codes 24", tmp_path, "", site)
    listed = run_shown("sgl-omni models --local", tmp_path, "", site)
    assert "tiny_voice\n  text -> audio; tasks: speech\n  checkpoints: TinyVoiceModel\n" in listed
    with served(tmp_path, "checkpoint", import_from=(site,)) as url:
        body = {"input": "Hello", "response_format": "pcm", "seed": 5}
        whole = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60)
        assert whole.status_code == 200, whole.text
        # 16 bits a sample, 200 samples a code.
        assert len(whole.content) > 0
        assert len(whole.content) % (2 * 200) == 0
        streamed = httpx.post(f"{url}/v1/audio/speech", json={**body, "stream": True}, timeout=60)
        assert streamed.content == whole.content
        long = httpx.post(f"{url}/v1/audio/speech", json={**body, "input": "a" * 1025}, timeout=60)
        assert (long.status_code, long.json()["error"]["param"]) == (400, "input")
