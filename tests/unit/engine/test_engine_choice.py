"""Which engine computes a decoder if the config leaves it open."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_omni.engines import build
from sglang_omni.engines.options import EngineOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines that were asked for; that of SGLang cannot be loaded."""
    kinds: list[str] = []

    def without_kernels(*_: object) -> None:
        kinds.append("sglang")
        raise ImportError("no kernels")

    monkeypatch.setattr("sglang_omni.engines.sglang.build.build_sglang_engine", without_kernels)
    monkeypatch.setattr(build, "build_omni_engine", lambda *_: kinds.append("omni"))
    return kinds


class Spec:
    model_path = "/models/some"


def test_a_gpu_without_sglangs_kernels_computes_all_the_same(
    asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    spec: Any = Spec()
    build.build_engine(None, spec, EngineOptions(device="cuda:0", dtype="bfloat16"))
    assert asked == ["sglang", "omni"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "/models/some: no kernels" in caplog.text
    with pytest.raises(ImportError, match="no kernels"):
        build.build_engine("sglang", spec, EngineOptions(device="cuda:0"))


def test_a_cpu_does_without_sglang(asked: list[str]) -> None:
    spec: Any = Spec()
    build.build_engine(None, spec, EngineOptions())
    assert asked == ["omni"]
