"""Which engine computes a decoder if the config leaves it open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.engines import build
from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.text import build_text_engine, only_engine


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


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 9,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
WINDOW = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("fields", "kind", "reason"),
    [
        ({}, None, None),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, None, None),
        ({"model_type": "mistral"}, "sglang", "model_type 'mistral' is none of llama, "),
        (DYNAMIC, "sglang", "rope_type 'dynamic' is none of default, "),
        ({"hidden_act": "gelu"}, "sglang", "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, "sglang", "it is quantized (fp8)"),
        (WINDOW, "omni", "it has layers with a sliding window"),
    ],
)
def test_what_one_engine_alone_computes(tmp_path: Path, fields: Any, kind: Any, reason: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    only = only_engine(tmp_path, EngineOptions())
    assert (only.kind if only else None) == kind
    assert only is None or only.reason.startswith(reason)


def test_without_sglang_the_reason_is_reported(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ImportError("no kernels")

    monkeypatch.setattr("sglang_omni.engines.sglang.build.build_sglang_text_engine", broken)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **DYNAMIC}))
    for device in ("cpu", "cuda:0"):
        with pytest.raises(
            ImportError, match=r"needs engine 'sglang', because rope_type 'dynamic' is none of"
        ):
            build_text_engine(None, tmp_path, EngineOptions(device=device))
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA, **WINDOW, "quantization_config": {"quant_method": "fp8"}})
    )
    with pytest.raises(
        ValueError, match=r"it is quantized \(fp8\), and engine 'omni', because it has layers"
    ):
        build_text_engine(None, tmp_path, EngineOptions())
    assert asked == []
