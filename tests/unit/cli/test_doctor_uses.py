"""What `sgl-omni doctor` says of uses: from the metadata of the distribution, and never as a failure."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sglang_omni.cli.doctor import uses
from sglang_omni.cli.doctor.uses import USES, packages_of, use_findings

PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
REQUIRED = [
    "numpy<3,>=2.0",
    "torch<3,>=2.7 ; extra == 'serve'",
    "ray[default]<3,>=2.60 ; extra == 'ray'",
    "sgl-omni[serve] ; extra == 'ray'",
]


def test_a_missing_use_names_its_own_packages_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the extras in it last: other uses name them."""
    own = ["sgl-omni[serve]; extra == 'realtime'", "aiortc; extra == 'realtime'"]
    served = [f"{name}; extra == 'serve'" for name in ("av", "jinja2", "pillow", "torch")]
    monkeypatch.setattr(uses.importlib.metadata, "requires", lambda name: own + served)
    monkeypatch.setattr(uses, "version_of", lambda name: "1" if name == "sgl-omni" else None)
    texts = {finding.name: finding.text for finding in use_findings()}
    assert texts["to take realtime calls over WebRTC"] == "not installed: aiortc, av, jinja2 and 2 more"


def test_an_extra_has_the_packages_of_the_extras_in_it() -> None:
    assert list(packages_of("ray", REQUIRED)) == ["ray", "torch"]
    assert list(packages_of("serve", REQUIRED)) == ["torch"]
    assert list(packages_of("no-such", REQUIRED)) == []


def test_every_extra_has_a_use() -> None:
    # That of SGLang is for GPUs, of which the doctor has findings of their own.
    assert set(PROJECT["optional-dependencies"]) - set(USES) <= {"sglang"}


def test_what_is_missing_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(uses, "version_of", lambda name: None if name == "ray" else "1")
    monkeypatch.setattr(uses.importlib.metadata, "requires", lambda name: REQUIRED)
    monkeypatch.setattr(uses, "_SOUND_CARDS", tmp_path / "none")
    found = {finding.name: finding for finding in use_findings()}
    assert found["to run stages on a Ray cluster"].status == "missing"
    assert found["to run stages on a Ray cluster"].text == "not installed: ray"
    assert found["to run stages on a Ray cluster"].mend == "pip install 'sgl-omni[ray]'"
    assert found["to serve Qwen3-Omni, a language model or a voice"].status == "ok"
    assert found["sound device"].status == "missing"
    # This version has no such extra.
    assert "to send traces to OpenTelemetry" not in found
