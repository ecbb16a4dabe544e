"""Ids of the hub in place of directories, against a small hub of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import SHA, FakeHub, fake_hub

# Each line in: arguments of ``download``; each line out: the directory, or what the error says. One process
# for many, because huggingface_hub reads its environment when it is imported.
_ASK = """
import json, sys
from sglang_omni.hub import HubError, download
for line in sys.stdin:
    arguments, options = json.loads(line)
    try:
        print(json.dumps(["there", str(download(*arguments, **options))]))
    except HubError as exc:
        print(json.dumps(["error", str(exc)]))
"""
FILES = {
    "config.json": "{}",
    "tokenizer.json": "{}",
    "chat_template.jinja": "x",
    "model-00001-of-00001.safetensors": "weights",
    "consolidated.safetensors": "the same weights",
    "codec.pth": "a codec",
    "pytorch_model.bin": "the same weights",
    "original/params.json": "{}",
    "README.md": "words",
}


def ask(environment: dict[str, str], *questions: tuple[list[Any], dict[str, Any]]) -> list[list[str]]:
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        input=lines,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("repos")
    for name, files in (("whole", FILES), ("gated", FILES), ("bare", {"config.json": "{}"})):
        for path, text in files.items():
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return {f"org/{name}": folder / name for name in ("whole", "gated", "bare")}


@pytest.fixture(scope="module")
def hub(repos: dict[str, Path]) -> Iterator[FakeHub]:
    with fake_hub(repos, frozenset({"org/gated"})) as hub:
        yield hub


def test_what_is_downloaded_and_what_errors_say(hub: FakeHub, tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_mine"}
    settings, whole, again, tagged, no_tag, gated, unknown, bare = ask(
        environment,
        (["org/whole"], {"weights": False}),
        (["org/whole"], {}),
        (["org/whole"], {}),
        (["org/whole", "v1"], {}),
        (["org/whole", "v9"], {}),
        (["org/gated"], {}),
        (["org/nothing"], {}),
        (["org/bare"], {}),
    )
    directory = Path(settings[1])
    assert whole == again == tagged == settings == ["there", str(directory)]
    assert directory.name == SHA
    assert directory.is_relative_to(tmp_path)
    there = {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}
    assert there == {
        *("config.json", "tokenizer.json", "chat_template.jinja"),
        *("model-00001-of-00001.safetensors", "codec.pth"),
    }
    assert "Bearer hf_mine" in hub.tokens
    downloads = {path: count for path, count in hub.requests.items() if path.startswith("GET /org/whole/")}
    assert downloads
    assert set(downloads.values()) == {1}, "from the cache after the first time"

    assert no_tag[1].startswith("org/whole has no revision 'v9'")
    assert "org/gated is gated: accept its terms on" in gated[1]
    assert "hf auth login" in gated[1]
    assert "org/nothing is not on" in unknown[1]
    assert "check the name" in unknown[1]
    assert "org/bare has no safetensors files" in bare[1]

    offline = environment | {"HF_HUB_OFFLINE": "1"}
    cached, missing = ask(offline, (["org/whole"], {}), (["org/other"], {}))
    assert cached == whole
    assert (
        "org/other is not, or not completely, in the cache, and HF_HUB_OFFLINE is set: unset it" in missing[1]
    )
    assert "hf download org/other" in missing[1]


def test_without_a_network(tmp_path: Path) -> None:
    (answer,) = ask({"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}, (["org/whole"], {}))
    assert answer[0] == "error"
    assert "org/whole cannot be downloaded (ConnectError" in answer[1]
    assert "HTTPS_PROXY" in answer[1]
    assert "give its directory" in answer[1]
