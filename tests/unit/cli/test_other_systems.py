"""On another system than Linux a server says so before it loads anything. Router and client are there."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from sglang_omni import launch_server

ROOT = Path(__file__).parents[3]


def test_a_server_says_that_it_needs_linux(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert launch_server.main(["speech-chat", "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert "a server needs Linux" in said
    assert "sgl-omni route" in said
    assert (ROOT / "docs/deploy.md").is_file()
    assert "docs/deploy.md" in said


def test_only_linux_compiles_the_relay() -> None:
    manifest = tomllib.loads((ROOT / "rust/python/Cargo.toml").read_text())
    assert "sglang-omni-relay" not in manifest["dependencies"]
    assert list(manifest["target"]['cfg(target_os = "linux")']["dependencies"]) == ["sglang-omni-relay"]
