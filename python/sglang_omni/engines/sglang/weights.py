"""Loads one decoder of a larger checkpoint through SGLang's model loader."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from sglang.srt.configs.shared_experts import SharedExpertsConfig
from sglang.srt.model_loader.loader import BaseModelLoader
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.runtime_context import get_model
from torch import nn

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.sglang.models.decoder import OmniDecoder
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.loader import Checkpoint

# The shared expert is a separate module, not one of the routed experts.
_NO_FUSION = SharedExpertsConfig(fusion_disabled=True, num_fused_shared_experts=0, use_waterfill=False)


def write_config(directory: Path, config: DecoderConfig) -> None:
    """Writes the ``config.json`` by which SGLang sizes its cache. The model itself is built from the spec."""
    fields = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
                    "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")
    }  # fmt: skip
    fields |= {"architectures": [OmniDecoder.__name__], "model_type": "qwen3"}
    (directory / "config.json").write_text(json.dumps(fields))


def loader_of(spec: DecoderSpec) -> type[BaseModelLoader]:
    """A loader class for SGLang that builds the decoder of ``spec`` and reads its tensors only."""

    class DecoderLoader(BaseModelLoader):
        def download_model(self, model_config: Any) -> None:
            pass

        def load_model(self, *, model_config: Any, device_config: Any) -> nn.Module:
            with (
                get_model().override(shared_experts=_NO_FUSION),
                set_default_torch_dtype(model_config.dtype),
                torch.device(device_config.device),
            ):
                model = OmniDecoder(spec)
                _fill(model, spec, model_config.dtype)
            model.shared_experts_config = _NO_FUSION
            for module in model.modules():
                if (method := getattr(module, "quant_method", None)) is not None:
                    method.process_weights_after_loading(module)
            return model.eval()

    return DecoderLoader


class _Reader:
    """Copies a checkpoint's tensors into parameters, or their shard for this rank."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def read(self, parameter: nn.Parameter | None, name: str, shape: tuple[int, ...], *shard: Any) -> None:
        if parameter is None:
            return
        load = getattr(parameter, "weight_loader", default_weight_loader)
        load(parameter, self._checkpoint.take(name, shape), *shard)


def _fill(model: OmniDecoder, spec: DecoderSpec, dtype: torch.dtype) -> None:
    config, names = spec.config, spec.weights
    checkpoint = spec.open_checkpoint(spec.model_path, dtype, spec.component)
    reader = _Reader(checkpoint)
    vocabulary = (config.vocab_size, config.hidden_size)
    if model.embed is not None:
        reader.read(model.embed.weight, names.embed_tokens, vocabulary)
    layers: Iterable[Any] = model.layers
    for index, layer in enumerate(layers):
        prefix = f"{names.layers}.{index}"
        reader.read(layer.input_norm.weight, f"{prefix}.input_layernorm.weight", (config.hidden_size,))
        reader.read(
            layer.post_norm.weight, f"{prefix}.post_attention_layernorm.weight", (config.hidden_size,)
        )
        _fill_attention(reader, layer.attention, config, f"{prefix}.self_attn")
        if config.is_sparse(index):
            _fill_sparse(reader, layer.mlp, config, f"{prefix}.mlp")
        else:
            _fill_dense(reader, layer.mlp, config, f"{prefix}.mlp", config.intermediate_size)
    reader.read(model.norm.weight, names.norm, (config.hidden_size,))
    tied = config.tie_word_embeddings
    reader.read(model.lm_head.weight, names.embed_tokens if tied else names.lm_head, vocabulary)
    # The embeddings may belong to a strategy, and a tied head may still be stored.
    checkpoint.finish(optional=(names.embed_tokens, names.lm_head))


def _fill_attention(reader: _Reader, attention: Any, config: DecoderConfig, prefix: str) -> None:
    hidden, dim = config.hidden_size, config.head_dim
    sizes = {
        "q": config.num_attention_heads * dim,
        "k": config.num_key_value_heads * dim,
        "v": config.num_key_value_heads * dim,
    }
    for part, size in sizes.items():
        reader.read(attention.qkv.weight, f"{prefix}.{part}_proj.weight", (size, hidden), part)
        reader.read(attention.qkv.bias, f"{prefix}.{part}_proj.bias", (size,), part)
    reader.read(attention.o.weight, f"{prefix}.o_proj.weight", (hidden, sizes["q"]))
    reader.read(attention.o.bias, f"{prefix}.o_proj.bias", (hidden,))
    for name in ("q_norm", "k_norm"):
        if (norm := getattr(attention, name)) is not None:
            reader.read(norm.weight, f"{prefix}.{name}.weight", (dim,))


def _fill_dense(reader: _Reader, mlp: Any, config: DecoderConfig, prefix: str, inner: int) -> None:
    hidden = config.hidden_size
    for shard, name in enumerate(("gate_proj", "up_proj")):
        reader.read(mlp.gate_up.weight, f"{prefix}.{name}.weight", (inner, hidden), shard)
        reader.read(mlp.gate_up.bias, f"{prefix}.{name}.bias", (inner,), shard)
    reader.read(mlp.down.weight, f"{prefix}.down_proj.weight", (hidden, inner))
    reader.read(mlp.down.bias, f"{prefix}.down_proj.bias", (hidden,))


def _fill_sparse(reader: _Reader, mlp: Any, config: DecoderConfig, prefix: str) -> None:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    reader.read(mlp.router.weight, f"{prefix}.gate.weight", (config.num_experts, hidden))
    experts = mlp.experts
    for index in range(config.num_experts):
        for name, part, parameter, shape in (
            ("gate_proj", "w1", experts.w13_weight, (inner, hidden)),
            ("up_proj", "w3", experts.w13_weight, (inner, hidden)),
            ("down_proj", "w2", experts.w2_weight, (hidden, inner)),
        ):
            tensor = f"{prefix}.experts.{index}.{name}.weight"
            reader.read(parameter, tensor, shape, tensor, part, index)
    if mlp.shared is not None and mlp.shared_gate is not None:
        width = config.shared_expert_intermediate_size
        _fill_dense(reader, mlp.shared, config, f"{prefix}.shared_expert", width)
        reader.read(mlp.shared_gate.weight, f"{prefix}.shared_expert_gate.weight", (1, hidden))
