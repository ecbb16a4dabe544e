"""Versions of other packages that were never tried: used, and a line of ``sgl-omni doctor``."""

from __future__ import annotations

import pytest

from sglang_omni.cli.doctor import machine
from sglang_omni.packages import TRIED, untried


@pytest.mark.parametrize(
    ("name", "version"),
    [("torch", "2.7.0"), ("transformers", "5.16.0"), *TRIED.items(), ("torch", f"{TRIED['torch']}.9+cpu")],
)
def test_nothing_is_said_of_what_was_tried(name: str, version: str) -> None:
    assert untried(name, version) is None


def test_nothing_is_said_of_packages_whose_insides_are_not_used() -> None:
    assert untried("tokenizers", "99.0") is None


@pytest.mark.parametrize("name", TRIED)
def test_the_doctor_warns_of_a_newer_minor_version(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    major, minor = map(int, TRIED[name].split("."))
    newer = f"{major}.{minor + 1}.0"
    monkeypatch.setattr(machine, "version_of", lambda each: newer if each == name else "1")
    monkeypatch.setattr(machine, "_range_of", lambda each: "")
    found = {finding.name: finding for finding in [*machine._packages(), *machine._torch([])]}
    assert found[name].status == "warn"
    assert found[name].text.startswith(newer)
    assert f"newer than {TRIED[name]}" in found[name].text
    assert f"pip install '{name}=={TRIED[name]}.*'" in found[name].mend
    (other,) = set(TRIED) - {name}
    assert found[other].status == "ok"
