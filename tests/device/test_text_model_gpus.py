"""Language models on machines with GPUs, as far as that can be told without one."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import needs_sglang
from fake_gpus import install
from published_shapes import write_text_model

from sglang_omni.config.factories.factory_args import resolve_stage_factory_args
from sglang_omni.engines import text as text_engines
from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.sglang.text_models import module_of
from sglang_omni.models.decoder.memory import text_model_demand
from sglang_omni.models.loading import placement
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.models.text import config as text_config
from sglang_omni.models.text.stages import load_engine
from sglang_omni.serve.launch.pipelines import LaunchError, fit_gpus

LLAMA_8B = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Llama-3.1-8B without its weights."""
    path = write_text_model(tmp_path, "Llama-3.1-8B")
    changed(path, LLAMA_8B)
    return path


def changed(checkpoint: Path, fields: dict[str, Any]) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, EngineOptions]]:
    """The kinds and options of engines, none of which is built."""
    asked: list[tuple[Any, EngineOptions]] = []
    install(monkeypatch, "H100 80GB")
    monkeypatch.setattr(
        text_engines, "build_text_engine", lambda kind, path, options: asked.append((kind, options))
    )
    return asked


def load(checkpoint: Path, **changes: Any) -> None:
    load_engine(checkpoint, changes.pop("engine", None), {"gpu_id": 0, **changes})


def test_a_llama_is_placed_on_the_gpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "H100 80GB")
    config = text_config.default_config(str(checkpoint))
    thinker = config.stage("thinker")
    assert thinker.gpu == 0
    assert resolve_stage_factory_args(thinker, config)["gpu_id"] == 0
    assert config.stage("preprocess").gpu is None
    spoken = SpeechChatPipelineConfig()
    spoken.stage("thinker").gpu = 1
    assert resolve_stage_factory_args(spoken.stage("thinker"), spoken)["gpu_id"] == 1
    install(monkeypatch, None)
    assert text_config.default_config(str(checkpoint)).stage("thinker").gpu is None


def test_an_engine_gets_what_fits_the_gpu(checkpoint: Path, built: list[tuple[Any, EngineOptions]]) -> None:
    load(checkpoint, quantization=None, kv_cache_dtype="auto")
    assert text_engines.default_text_engine(checkpoint, EngineOptions(device="cuda:0")) == "sglang"
    _, options = built[-1]
    assert (options.device, options.dtype) == ("cuda:0", "bfloat16")
    assert (options.max_running_requests, options.chunked_prefill_size) == (256, 8192)
    # Of 79 GiB, the weights take 15; a token takes 128 KiB.
    assert 64 * 8192 > options.max_total_tokens > 55 * 8192

    load(
        checkpoint,
        quantization="fp8",
        kv_cache_dtype="fp8_e4m3",
        dtype="float16",
        tp_rank=1,
        tp_size=2,
        nccl_port=5000,
    )
    smaller = built[-1][1]
    assert (smaller.quantization, smaller.kv_cache_dtype, smaller.dtype) == ("fp8", "fp8_e4m3", "float16")
    assert smaller.max_total_tokens > 3 * options.max_total_tokens
    assert (smaller.tp.rank, smaller.tp.size) == (1, 2)

    changed(checkpoint, {"torch_dtype": "float16", "quantization_config": {"quant_method": "awq"}})
    load(checkpoint, dtype="auto", max_total_tokens=99)
    assert (built[-1][1].dtype, built[-1][1].max_total_tokens) == ("float16", 99)


def test_weights_that_leave_no_room(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "L4")
    config = text_config.default_config(str(checkpoint))
    assert fit_gpus(config) is not None
    # A MiB a token instead of 128 KiB.
    changed(checkpoint, {"num_hidden_layers": 64, "num_key_value_heads": 32})
    with pytest.raises(LaunchError, match=r"(?s)do not fit .*--quantization fp8.*take a GPU with"):
        fit_gpus(text_config.default_config(str(checkpoint)))
    install(monkeypatch, "L4", 4)
    with pytest.raises(LaunchError, match="--tp-size"):
        fit_gpus(text_config.default_config(str(checkpoint)))


def test_what_a_token_takes_of_any_architecture(checkpoint: Path) -> None:
    latent = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    changed(checkpoint, latent)
    assert text_model_demand(checkpoint, {"tp_size": 8}).token_bytes == 61 * 576 * 2
    (checkpoint / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="num_attention_heads"):
        text_model_demand(checkpoint, {})


def test_dtypes() -> None:
    assert placement("auto", None, "bfloat16") == ("float32", "cpu")
    assert placement(None, 2, "float32") == ("bfloat16", "cuda:2")
    assert placement("auto", 0, "float16") == ("float16", "cuda:0")
    assert placement("float32", 0) == ("float32", "cuda:0")


def test_a_gpu_without_sglangs_kernels_falls_back(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ImportError("no kernels")

    asked = []
    monkeypatch.setattr("sglang_omni.engines.sglang.build.build_sglang_text_engine", broken)
    monkeypatch.setattr(text_engines, "build_engine", lambda kind, *_: asked.append(kind))
    on_gpu = EngineOptions(device="cuda:0", dtype="bfloat16")
    text_engines.build_text_engine(None, checkpoint, on_gpu)
    assert asked == ["omni"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no kernels" in caplog.text
    with pytest.raises(ImportError, match="no kernels"):
        text_engines.build_text_engine("sglang", checkpoint, on_gpu)
    (checkpoint / "config.json").write_text('{"model_type": "mistral"}')
    with pytest.raises(ImportError, match="needs engine 'sglang', because model_type 'mistral' is"):
        text_engines.build_text_engine(None, checkpoint, EngineOptions())
    assert asked == ["omni"]


@needs_sglang
@pytest.mark.parametrize(
    ("architecture", "module"),
    [
        ("LlamaForCausalLM", "llama"),
        ("MistralForCausalLM", "mistral"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("Cohere2ForCausalLM", "commandr"),
        ("DeepseekV3ForCausalLM", "deepseek_v2"),
        # Named in modules, but no class of SGLang's registry.
        ("PretrainedConfig", None),
        ("NoSuchForCausalLM", None),
    ],
)
def test_the_module_of_an_architecture_is_found_without_an_import(
    architecture: str, module: str | None
) -> None:
    package = importlib.util.find_spec("sglang")
    assert package is not None
    assert package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0]) / "srt" / "models"
    assert module_of(architecture, folder) == module
