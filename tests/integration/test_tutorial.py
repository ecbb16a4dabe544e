"""The steps of examples/tutorial are served and answer as docs/tutorial.md says, which quotes them."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from own_pipelines import ROOT, ShownPage, is_as_shown, run_shown, served

from sglang_omni.client.audio import decode_wav
from sglang_omni.config import load_config

FOLDER = ROOT / "examples/tutorial"
PAGE = ShownPage("tutorial.md")


def ask(url: str, text: str = "hello world", **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], **fields}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def pieces(url: str) -> list[str]:
    body = {"messages": [{"role": "user", "content": "hello world"}], "stream": True}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    return [delta["content"] for delta in deltas if delta.get("content")]


@pytest.mark.parametrize("kind", ["python", "yaml"])
def test_the_page_quotes_the_files(kind: str) -> None:
    suffix = {"python": ".py", "yaml": ".yaml"}[kind]
    files = [file.read_text() for file in sorted(FOLDER.glob(f"*{suffix}"))]
    blocks = PAGE.of(kind)
    assert len(blocks) >= 4
    assert [block for block in blocks if not any(block in text for text in files)] == []


def test_every_step_is_on_the_page() -> None:
    text = (ROOT / "docs/tutorial.md").read_text()
    assert {kind for kind, _ in PAGE.blocks} == {"python", "yaml", "console"}
    for file in FOLDER.glob("step*.*"):
        assert file.name in text or file.stem in text


def test_functions() -> None:
    with served(FOLDER, "--config", "step1_functions.yaml") as url:
        for command, shown in PAGE.commands():
            if not command.startswith("sgl-omni serve"):
                output = run_shown(command, FOLDER, url)
                assert is_as_shown(output, shown), f"{command}\n{output}\nis not\n{shown}"


def test_processes() -> None:
    one, two = (load_config(FOLDER / f"{name}.yaml") for name in ("step1_functions", "step2_processes"))
    assert [stage.process for stage in one.stages] == ["main", "main", "main"]
    assert [stage.process for stage in two.stages] == ["main", "translator", "main"]
    for stage in two.stages:
        stage.process = "main"
    assert two == one
    with served(FOLDER, "--config", "step2_processes.yaml") as url:
        info = httpx.get(f"{url}/get_server_info", timeout=60).json()
        assert len(info["processes"]) == 2
        assert ask(url)["content"] == "ellohay orldway"


def test_batching() -> None:
    with served(FOLDER, "--config", "step3_batching.yaml") as url, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: ask(url, f"word{n}")["content"], range(8)))
        assert [answer.partition(" ")[0] for answer in answers] == [f"ord{n}way" for n in range(8)]
        assert any(not answer.endswith("(of 1)") for answer in answers), answers


def test_streaming() -> None:
    with served(FOLDER, "--config", "step4_streaming.yaml") as url:
        assert pieces(url) == ["ellohay", " orldway"]
        message = ask(url, modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"})
        assert message["content"] == "ellohay orldway"
        samples, rate = decode_wav(base64.b64decode(message["audio"]["data"]))
        assert (len(samples), rate) == (2_400 * 14, 24_000)
        assert 0.1 < abs(samples).max() < 0.3


def test_fan_in() -> None:
    with served(FOLDER, "--config", "step5_fan_in.yaml") as url:
        assert pieces(url) == ["ellohay ", "orldway ", "(10 letters before)"]
        assert ask(url)["content"] == "ellohay orldway (10 letters before)"
