"""Quantized checkpoints: who refuses them, and that every tensor has its place in SGLang's layers.

The kernels that compute them need a GPU: these tests look at the loaded parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sglang_engines import engines
from tiny_checkpoints import SHAPES, TinyCheckpoint, make_checkpoint
from torch import Tensor

from sglang_omni.engines.build import build_omni_engine
from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.quantization import quantization_of
from sglang_omni.engines.text import build_text_engine, default_text_engine

BLOCK = 16
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
LEFT_OUT = "model.layers.1.self_attn.o_proj"
FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
    "modules_to_not_convert": ["lm_head", LEFT_OUT],
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "lm_head": False}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                **{"num_bits": 8, "type": "float", "strategy": "channel"},
                **{"symmetric": True, "dynamic": False, "observer": "minmax"},
            },
            "input_activations": {
                **{"num_bits": 8, "type": "float", "strategy": "token"},
                **{"symmetric": True, "dynamic": True},
            },
        }
    },
    "ignore": ["lm_head", "re:.*mlp.gate$"],
}
Quantize = Callable[[str, Tensor], dict[str, Tensor]]


def to_fp8(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Blocks with a scale each."""
    rows, columns = weight.shape[0] // BLOCK, weight.shape[1] // BLOCK
    blocks = weight.view(rows, BLOCK, columns, BLOCK)
    scales = blocks.abs().amax((1, 3)) / 448
    quantized = (blocks / scales[:, None, :, None]).view(weight.shape).to(torch.float8_e4m3fn)
    return {f"{name}.weight": quantized, f"{name}.weight_scale_inv": scales}


def to_channels(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Rows with a scale each."""
    scales = weight.abs().amax(1, keepdim=True) / 448
    return {
        f"{name}.weight": (weight / scales).to(torch.float8_e4m3fn),
        f"{name}.weight_scale": scales.bfloat16(),
    }


def to_gptq(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Random words of the right shapes: nothing here computes with them."""
    outputs, inputs = weight.shape
    generator = torch.Generator().manual_seed(len(name))

    def words(*shape: int) -> Tensor:
        return torch.randint(-(2**31), 2**31 - 1, shape, generator=generator).int()

    return {
        f"{name}.qweight": words(inputs // 8, outputs),
        f"{name}.qzeros": words(inputs // 32, outputs // 8),
        f"{name}.scales": torch.rand(inputs // 32, outputs, generator=generator).half(),
        f"{name}.g_idx": torch.arange(inputs).int() // 32,
        f"{name}.bias": torch.zeros(outputs).half(),
    }


def quantized_copy(
    checkpoint: TinyCheckpoint, directory: Path, quantize: Quantize, config: dict[str, Any]
) -> Path:
    """Its projections quantized, but for the routers, the head, and those that ``config`` names."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(checkpoint.path / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if layer.endswith("_proj") and layer not in config.get("modules_to_not_convert", ()):
            tensors |= quantize(layer, tensor)
        else:
            tensors[name] = tensor
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    fields = json.loads((checkpoint.path / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {"quantization_config": config}))
    return directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, "qwen3moe-even", {**SHAPES["qwen3moe"], "moe_intermediate_size": 32})
        return make_checkpoint(tmp_path_factory.mktemp("even"), "qwen3moe-even", 0)


@pytest.fixture(scope="module")
def fp8(checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized_copy(checkpoint, tmp_path_factory.mktemp("fp8") / "fp8", to_fp8, FP8)


@pytest.fixture(scope="module")
def runtime(checkpoint: TinyCheckpoint) -> Iterator[Any]:
    """SGLang's settings and groups, as an engine that is not quantized has them."""
    with engines("sglang") as build:
        yield build(DecoderSpec.from_dir(checkpoint.path))._runtime


def filled(runtime: Any, path: Path, quantization: Any, dtype: torch.dtype = torch.bfloat16) -> Any:
    from sglang_omni.engines.sglang.weights import build_and_fill

    quantization.packed_modules_mapping = PACKED
    with runtime.active():
        return build_and_fill(DecoderSpec.from_dir(path), quantization, dtype, "cpu")


def test_every_block_of_fp8_and_its_scale_have_a_place(runtime: Any, fp8: Path) -> None:
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    stored = load_file(fp8 / "model.safetensors")
    model = filled(runtime, fp8, Fp8Config.from_config(dict(FP8)))
    for index, layer in enumerate(model.layers):
        prefix = f"model.layers.{index}"
        for kind in ("weight", "weight_scale_inv"):
            parts = [stored[f"{prefix}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            assert torch.equal(getattr(layer.attention.qkv, kind).float(), torch.cat(parts).float())
        if index == 1:
            # A dense layer, with a projection that is left out.
            parts = [stored[f"{prefix}.mlp.{part}_proj.weight_scale_inv"] for part in ("gate", "up")]
            assert torch.equal(layer.mlp.gate_up.weight_scale_inv, torch.cat(parts))
            assert layer.attention.o.weight.dtype == torch.bfloat16
            assert torch.equal(layer.attention.o.weight, stored[f"{LEFT_OUT}.weight"].bfloat16())
            continue
        assert layer.attention.o.weight.dtype == torch.float8_e4m3fn
        assert layer.mlp.router.weight.dtype == torch.bfloat16
        experts = layer.mlp.experts
        for expert in (0, 7):
            where = f"{prefix}.mlp.experts.{expert}"
            for kind in ("weight", "weight_scale_inv"):
                joined = torch.cat([stored[f"{where}.{part}_proj.{kind}"].float() for part in ("gate", "up")])
                assert torch.equal(getattr(experts, f"w13_{kind}")[expert].float(), joined)
                down = stored[f"{where}.down_proj.{kind}"].float()
                assert torch.equal(getattr(experts, f"w2_{kind}")[expert].float(), down)


def test_every_word_of_gptq_has_a_place(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.layers.quantization.gptq import GPTQMarlinConfig
    from sglang.srt.layers.quantization.gptq.schemes import gptq_marlin

    # It asks what the GPU can do.
    monkeypatch.setattr(gptq_marlin, "verify_marlin_supported", lambda **_: None)
    monkeypatch.setitem(SHAPES, "qwen3-even", {**SHAPES["qwen3"], "intermediate_size": 128})
    dense = make_checkpoint(tmp_path / "dense", "qwen3-even", 0)
    path = quantized_copy(dense, tmp_path / "gptq", to_gptq, GPTQ)
    stored = load_file(path / "model.safetensors")
    model = filled(runtime, path, GPTQMarlinConfig.from_config(dict(GPTQ)), torch.float16)
    for index, layer in enumerate(model.layers):
        where = f"model.layers.{index}.self_attn"
        for kind in ("qweight", "qzeros", "scales"):
            parts = [stored[f"{where}.{part}_proj.{kind}"] for part in "qkv"]
            assert torch.equal(getattr(layer.attention.qkv, kind), torch.cat(parts, dim=1))
        assert torch.equal(layer.mlp.down.qweight, stored[f"model.layers.{index}.mlp.down_proj.qweight"])


def test_every_row_of_compressed_tensors_has_a_place(
    runtime: Any, checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    # It asks what the GPU can do.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(CompressedTensorsConfig, "_check_scheme_supported", lambda *_, **__: True)
    path = quantized_copy(checkpoint, tmp_path / "channels", to_channels, CHANNELS)
    stored = load_file(path / "model.safetensors")
    config = CompressedTensorsConfig.from_config({**CHANNELS, "packed_modules_mapping": PACKED})
    model = filled(runtime, path, config)
    layer = model.layers[0]
    for kind in ("weight", "weight_scale"):
        parts = [stored[f"model.layers.0.self_attn.{part}_proj.{kind}"].float() for part in "qkv"]
        found = getattr(layer.attention.qkv, kind).float()
        assert torch.equal(found, torch.cat(parts))
        where = "model.layers.0.mlp.experts.3"
        parts = [stored[f"{where}.{part}_proj.{kind}"].float() for part in ("gate", "up")]
        assert torch.equal(getattr(layer.mlp.experts, f"w13_{kind}")[3].float(), torch.cat(parts))
    assert layer.mlp.router.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("model.layers.0.self_attn.q_proj.weight_scale_inv"), "lacks the tensor"),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.k_scale": torch.ones(1)}),
            "1 tensor the model lacks: model.layers.0.self_attn.k_scale",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}),
            "q_proj.bias', which the model lacks",
        ),
        (
            lambda tensors: tensors.update(
                {"model.layers.0.self_attn.q_proj.weight": torch.ones(64, 64).bfloat16()}
            ),
            "is torch.bfloat16 of shape.*ask for torch.float8_e4m3fn",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    runtime: Any, fp8: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], said: str
) -> None:
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    tensors = load_file(fp8 / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((fp8 / "config.json").read_text())
    with pytest.raises(ValueError, match=said):
        filled(runtime, tmp_path, Fp8Config.from_config(dict(FP8)))


def test_sglang_is_reported_of_the_quantization(
    runtime: Any, fp8: Path, checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig

    from sglang_omni.engines.sglang.weights import quantization_of_model, write_config

    for name, path in (("plain", checkpoint.path), ("fp8", fp8)):
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, DecoderSpec.from_dir(path))
    with runtime.active():
        plain = ModelConfig(str(tmp_path / "plain"), dtype="bfloat16")
        assert quantization_of_model(plain, LoadConfig()) is None
        found = quantization_of_model(ModelConfig(str(tmp_path / "fp8"), dtype="bfloat16"), LoadConfig())
        assert found is not None
        assert found.get_name() == "fp8"
        assert found.weight_block_size == [BLOCK, BLOCK]
        assert f"{LEFT_OUT}" in found.ignored_layers
        online = ModelConfig(str(tmp_path / "plain"), dtype="bfloat16", quantization="fp8")
        assert not quantization_of_model(online, LoadConfig()).is_checkpoint_fp8_serialized
        with pytest.raises(ValueError, match=r"computes in .*bfloat16.*: choose one of them as --dtype"):
            quantization_of_model(ModelConfig(str(tmp_path / "fp8"), dtype="float32"), LoadConfig())


def test_engines_on_a_cpu_refuse_what_is_quantized(fp8: Path, checkpoint: TinyCheckpoint) -> None:
    assert quantization_of(fp8) == "fp8"
    assert default_text_engine(fp8, EngineOptions()) == "sglang"
    with pytest.raises(ValueError, match=r"is quantized \(fp8\): engine 'sglang' on a GPU reads it"):
        build_omni_engine(DecoderSpec.from_dir(fp8), EngineOptions())
    with pytest.raises(ValueError, match=r"quantization 'fp8' is computed by SGLang's kernels on a GPU"):
        build_text_engine(None, fp8, EngineOptions())
    for option in ({"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}, {"attention_backend": "fa3"}):
        with pytest.raises(ValueError, match=r"is for engine 'sglang' on a GPU"):
            build_omni_engine(DecoderSpec.from_dir(checkpoint.path), EngineOptions(**option))
