"""Loads one decoder of a larger checkpoint through SGLang's model loader."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sglang.srt.configs.shared_experts import SharedExpertsConfig
from sglang.srt.layers.quantization.base_config import QuantizationConfig
from sglang.srt.model_loader.loader import BaseModelLoader
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.model_loader.weight_utils import default_weight_loader, get_quant_config
from sglang.srt.runtime_context import get_model
from torch import Tensor, nn

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.quantization import quantization_config
from sglang_omni.engines.sglang.models.decoder import OmniDecoder
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.loader import Checkpoint

# The shared expert is a separate module, not one of the routed experts.
_NO_FUSION = SharedExpertsConfig(fusion_disabled=True, num_fused_shared_experts=0, use_waterfill=False)


def write_config(directory: Path, spec: DecoderSpec) -> None:
    """Writes the ``config.json`` by which SGLang sizes its cache and knows the weights' quantization.

    The model itself is built from the spec.
    """
    fields = {
        name: value
        for name, value in dataclasses.asdict(spec.config).items()
        if name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
                    "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")
    }  # fmt: skip
    fields |= {"architectures": [OmniDecoder.__name__], "model_type": "qwen3"}
    quantization = quantization_config(spec.model_path)
    # A checkpoint's other decoder may be quantized, and this one not.
    if quantization is not None and _has_quantized(Checkpoint(spec.model_path, None, spec.component).unread):
        fields["quantization_config"] = quantization
    (directory / "config.json").write_text(json.dumps(fields))


def _has_quantized(names: Iterable[str]) -> bool:
    """True if there are tensors beside the weights and biases: scales, packed weights, zero points."""
    return any(not name.endswith((".weight", ".bias", "inv_freq")) for name in names)


def loader_of(spec: DecoderSpec) -> type[BaseModelLoader]:
    """A loader class for SGLang that builds the decoder of ``spec`` and reads its tensors only."""

    class DecoderLoader(BaseModelLoader):
        def download_model(self, model_config: Any) -> None:
            pass

        def load_model(self, *, model_config: Any, device_config: Any) -> nn.Module:
            quantization = quantization_of_model(model_config, self.load_config)
            model = build_and_fill(spec, quantization, model_config.dtype, device_config.device)
            for module in model.modules():
                if (method := getattr(module, "quant_method", None)) is not None:
                    method.process_weights_after_loading(module)
            return model.eval()

    return DecoderLoader


def quantization_of_model(model_config: Any, load_config: Any) -> QuantizationConfig | None:
    """The quantization of the weights, stored or asked for; None without one.

    Args:
        model_config: SGLang's ``ModelConfig``, from the file that ``write_config`` wrote.
        load_config: SGLang's ``LoadConfig``.

    Raises:
        ValueError: The GPU, or the dtype, is not one that the quantization works with.
    """
    method = model_config.quantization
    if method is None:
        return None
    config = get_quant_config(model_config, load_config, dict(OmniDecoder.packed_modules_mapping))
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        if (least := config.get_min_capability()) > 10 * major + minor:
            raise ValueError(
                f"quantization {method!r} needs a GPU of compute capability {least / 10}, this one has "
                f"{major}.{minor}"
            )
    if model_config.dtype not in config.get_supported_act_dtypes():
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in config.get_supported_act_dtypes())
        raise ValueError(f"quantization {method!r} computes in {names}: choose one of them as --dtype")
    return config


def build_and_fill(
    spec: DecoderSpec, quantization: QuantizationConfig | None, dtype: torch.dtype, device: str
) -> OmniDecoder:
    """The decoder of ``spec`` with the checkpoint's weights in it, as they are stored if they are quantized.

    Raises:
        FileNotFoundError, ValueError: A tensor of the checkpoint is missing, misshapen or unknown.
    """
    with (
        get_model().override(shared_experts=_NO_FUSION),
        set_default_torch_dtype(dtype),
        torch.device(device),
    ):
        model = OmniDecoder(spec, quantization)
        _fill(model, spec, dtype)
    model.shared_experts_config = _NO_FUSION
    return model


class _Part(NamedTuple):
    """One projection of the checkpoint inside a layer of SGLang's, which may join several.

    Attributes:
        prefix: Of its tensors' names.
        rows: Its outputs.
        shard: How SGLang's layer names it; empty if the layer is this projection alone.
    """

    prefix: str
    rows: int
    shard: tuple[Any, ...] = ()


class _Reader:
    """Copies a checkpoint's tensors into parameters, or their shard for this rank."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self.checkpoint = checkpoint
        self._dtype = dtype

    def read(self, parameter: nn.Parameter | None, name: str, shape: tuple[int, ...], *shard: Any) -> None:
        if parameter is None:
            return
        load = getattr(parameter, "weight_loader", default_weight_loader)
        load(parameter, self._weights(parameter, name, shape), *shard)

    def linear(self, layer: nn.Module, width: int, *parts: _Part) -> None:
        """Reads every parameter of a layer of SGLang's: weights, biases, and what a quantization adds."""
        for kind, parameter in layer.named_parameters(recurse=False):
            for part in parts:
                name = f"{part.prefix}.{kind}"
                if kind in ("weight", "bias"):
                    shape = (part.rows, width) if kind == "weight" else (part.rows,)
                    self.read(parameter, name, shape, *part.shard)
                else:
                    self._added(parameter, name, *part.shard)

    def expert(self, experts: nn.Module, prefix: str, index: int, hidden: int, inner: int) -> None:
        """Reads one expert's part of every parameter of SGLang's experts.

        Their names begin with ``w13_`` for the joined gate and up projections, with ``w2_`` for the other.
        """
        for kind, parameter in experts.named_parameters(recurse=False):
            joined, _, suffix = kind.partition("_")
            for projection, shard, shape in (
                (("gate_proj", "w1", (inner, hidden)), ("up_proj", "w3", (inner, hidden)))
                if joined == "w13"
                else (("down_proj", "w2", (hidden, inner)),)
            ):
                name = f"{prefix}.{projection}.{suffix}"
                if suffix == "weight":
                    self.read(parameter, name, shape, name, shard, index)
                else:
                    self._added(parameter, name, name, shard, index)

    def finish(self, *optional: str) -> None:
        """Raise ValueError if the checkpoint has more tensors than the model.

        GPTQ's writers give every layer a bias, of zeros if it has none: these are left.
        """
        for name in self.checkpoint.unread:
            if name.endswith(".bias") and self.checkpoint.take_stored(name).any():
                raise ValueError(f"the checkpoint has the tensor {name!r}, which the model lacks")
        self.checkpoint.finish(optional=optional)

    def _weights(self, parameter: nn.Parameter, name: str, shape: tuple[int, ...]) -> Tensor:
        if parameter.dtype == self._dtype:
            return self.checkpoint.take(name, shape)
        tensor = self.checkpoint.take_stored(name)
        if tuple(tensor.shape) != shape or tensor.dtype != parameter.dtype:
            raise ValueError(
                f"{name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}; the checkpoint's "
                f"quantization_config and config.json ask for {parameter.dtype} of {shape}"
            )
        return tensor

    def _added(self, parameter: nn.Parameter, name: str, *shard: Any) -> None:
        load = getattr(parameter, "weight_loader", None)
        # Without a loader SGLang fills it itself. Only checkpoints with reordered rows have an order of rows.
        if load is None or ("g_idx" in name and name not in self.checkpoint):
            return
        load(parameter, self.checkpoint.take_stored(name), *shard)


def _fill(model: OmniDecoder, spec: DecoderSpec, dtype: torch.dtype) -> None:
    config, names = spec.config, spec.weights
    checkpoint = spec.open_checkpoint(spec.model_path, dtype, spec.component)
    reader = _Reader(checkpoint, dtype)
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
    reader.finish(names.embed_tokens, names.lm_head)


def _fill_attention(reader: _Reader, attention: Any, config: DecoderConfig, prefix: str) -> None:
    hidden, dim = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    reader.linear(
        attention.qkv,
        hidden,
        _Part(f"{prefix}.q_proj", queries, ("q",)),
        _Part(f"{prefix}.k_proj", keys, ("k",)),
        _Part(f"{prefix}.v_proj", keys, ("v",)),
    )
    reader.linear(attention.o, queries, _Part(f"{prefix}.o_proj", hidden))
    for name in ("q_norm", "k_norm"):
        if (norm := getattr(attention, name)) is not None:
            reader.read(norm.weight, f"{prefix}.{name}.weight", (dim,))


def _fill_dense(reader: _Reader, mlp: Any, config: DecoderConfig, prefix: str, inner: int) -> None:
    hidden = config.hidden_size
    reader.linear(
        mlp.gate_up,
        hidden,
        _Part(f"{prefix}.gate_proj", inner, (0,)),
        _Part(f"{prefix}.up_proj", inner, (1,)),
    )
    reader.linear(mlp.down, inner, _Part(f"{prefix}.down_proj", hidden))


def _fill_sparse(reader: _Reader, mlp: Any, config: DecoderConfig, prefix: str) -> None:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    reader.linear(mlp.router, hidden, _Part(f"{prefix}.gate", config.num_experts))
    for index in range(config.num_experts):
        reader.expert(mlp.experts, f"{prefix}.experts.{index}", index, hidden, inner)
    if mlp.shared is not None and mlp.shared_gate is not None:
        width = config.shared_expert_intermediate_size
        _fill_dense(reader, mlp.shared, config, f"{prefix}.shared_expert", width)
        reader.linear(mlp.shared_gate, hidden, _Part(f"{prefix}.shared_expert_gate", 1))
