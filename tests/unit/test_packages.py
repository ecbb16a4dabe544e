"""Versions of other packages that were never tried: used, with one warning."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterator

import pytest

from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.packages import TRIED, warn_of_untried
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.proto import OmniRequest, StagePayload


def create_echo() -> Callable[[StagePayload], str]:
    return lambda payload: "here"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    warn_of_untried.cache_clear()
    yield
    warn_of_untried.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


async def test_a_pipeline_runs_with_a_newer_minor_version_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, {"transformers": "5.100.1", "torch": f"{TRIED['torch']}.9+cpu"})
    stage = StageConfig(name="only", process="own", factory="test_packages.create_echo", terminal=True)
    for _ in range(2):
        runner = PipelineRunner(*compile_pipeline(PipelineConfig(model_path="none", stages=[stage])))
        with caplog.at_level(logging.WARNING):
            await runner.start()
        try:
            assert await runner.coordinator.submit("one", OmniRequest("hello")) == "here"
        finally:
            await runner.stop()
    (said,) = (record.getMessage() for record in caplog.records if record.name == "sglang_omni.packages")
    assert said.startswith(f"transformers 5.100.1 is newer than {TRIED['transformers']}")
    assert f"pip install 'transformers=={TRIED['transformers']}.*'" in said


@pytest.mark.parametrize("versions", [{}, {"torch": "2.7.0", "transformers": "5.16.0"}, dict(TRIED)])
def test_nothing_is_said_of_what_was_tried_or_is_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, versions: dict[str, str]
) -> None:
    install(monkeypatch, versions)
    warn_of_untried()
    assert not caplog.messages
