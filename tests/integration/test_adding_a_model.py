"""docs/adding-a-model.md: the package that it shows is installed, and its checkpoint served by its path."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from own_pipelines import ROOT, ShownPage, is_as_shown, run_shown, served

from sglang_omni.client.audio import decode_pcm, decode_wav
from sglang_omni.serve.launch.registry import PipelineError, pipeline_of

PAGE = ShownPage("adding-a-model.md")
SOURCE = ROOT / "examples/toy_tts"
TEMPLATE = ROOT / "python/sglang_omni/cli/templates/family"
RATE, LETTER = 16_000, 1280


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, installed into the folder ``site``, and its checkpoint."""
    path = tmp_path_factory.mktemp("toy")
    shutil.copytree(SOURCE, path / "toy_tts")
    install, make, *_ = [command for command, _ in PAGE.commands()]
    assert install.startswith("pip install ")
    run_shown(install.replace("pip install ", "python -m pip install --no-index --target site "), path, "")
    # Of the package that is installed: beside the script, Python would find the source.
    shutil.rmtree(path / "toy_tts" / "toy_tts")
    run_shown(make, path, "", path / "site")
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    (command,) = [command for command, _ in PAGE.commands() if command.startswith("sgl-omni serve ")]
    with served(folder, *command.split()[2:], import_from=(folder / "site",)) as url:
        yield url


def speak(url: str, text: str, **fields: object) -> bytes:
    body = {"input": text, "response_format": "pcm", **fields}
    answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.content


def plain(code: str) -> str:
    """Its lines, wherever they are indented."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


def test_the_page_quotes_the_files() -> None:
    shown = [text for kind, text in PAGE.blocks if kind in ("toml", "python")]
    names = (
        "pyproject.toml",
        "toy_tts/config.py",
        "toy_tts/model.py",
        "toy_tts/stages.py",
        "make_checkpoint.py",
    )
    assert shown[: len(names)] == [(SOURCE / name).read_text() for name in names]
    template = [plain(file.read_text()) for file in TEMPLATE.rglob("*.py")]
    assert [text for text in shown[len(names) :] if not any(plain(text) in file for file in template)] == []
    assert len(shown) == len(names) + 3
    kinds = [kind for kind, _ in PAGE.blocks if kind not in ("toml", "python")]
    assert kinds == ["console", "text", "bash", "text", "text"]
    package = [file.read_text().splitlines() for file in (SOURCE / "toy_tts").glob("*.py")]
    assert sum(map(len, package)) <= 150


def test_the_request_that_is_shown(folder: Path, url: str) -> None:
    run_shown(PAGE.commands()[-1][0], folder, url)
    samples, rate = decode_wav((folder / "hello.wav").read_bytes())
    assert (len(samples), rate) == (12 * LETTER, RATE)
    sound = np.abs(samples).reshape(12, LETTER).max(axis=1)
    assert (sound[[5, 6]] == 0).all()  # the comma and the space
    assert (np.delete(sound, [5, 6]) > 0.2).all()


def test_the_stream_is_the_whole_and_has_no_seams(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    whole = speak(url, text)
    assert len(whole) == 2 * LETTER * len(text)
    assert speak(url, text, stream=True) == whole
    monkeypatch.syspath_prepend(str(folder / "site"))
    model, _ = importlib.import_module("toy_tts.model").load(str(folder / "toy-checkpoint"))
    at_once, _ = model(torch.tensor([[ord(letter) for letter in text]]), torch.zeros(1, 2), LETTER)
    # The phase of a long sound is rounded more coarsely.
    np.testing.assert_allclose(decode_pcm(whole), at_once[0], atol=0.01)
    assert len(speak(url, text, speed=2.0)) == len(whole) // 2


def test_a_batch_is_each_alone(url: str) -> None:
    texts = [chr(ord("a") + n) * (5 + n) for n in range(12)]
    alone = [speak(url, text) for text in texts]
    with ThreadPoolExecutor(len(texts)) as pool:
        together = list(pool.map(lambda text: speak(url, text), texts))
    for one, other in zip(alone, together, strict=True):
        difference = np.frombuffer(one, np.int16).astype(int) - np.frombuffer(other, np.int16)
        assert np.abs(difference).max() <= 1


def test_what_it_refuses(url: str) -> None:
    for body, reported in (
        ({"input": "éé"}, "input has 0 letters to speak; 1 to 4096 are accepted"),
        ({"input": "a", "voice": "bob"}, "has no voice 'bob'; it has toy"),
    ):
        answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60)
        assert answer.status_code == 400
        assert reported in answer.json()["error"]["message"]


def test_an_unknown_checkpoint_is_reported_as_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder / "site"))
    with pytest.raises(PipelineError) as error:
        pipeline_of({"model_type": "toy", "architectures": ["ToyTTSModel2"]})
    assert is_as_shown(str(error.value), PAGE.of("text")[0])
    fields = json.loads((folder / "toy-checkpoint/config.json").read_text())
    assert pipeline_of(fields).owner == "toy-tts 0.1"
