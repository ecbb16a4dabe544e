"""The shape of a decoder, read from a checkpoint's ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Qwen3-Omni's two decoders are described by a part of its config.json: thinker_config.text_config and
# talker_config.text_config. Those of Qwen2.5-Omni by thinker_config.text_config and talker_config.
THINKER, TALKER = "qwen3_omni_moe_text", "qwen3_omni_moe_talker_text"
DENSE_THINKER, DENSE_TALKER = "qwen2_5_omni_text", "qwen2_5_omni_talker"
FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", THINKER, TALKER, DENSE_THINKER, DENSE_TALKER)
# The usual split of channels of families whose positions have three axes.
_MROPE = {
    THINKER: (24, 20, 20),
    TALKER: (24, 20, 20),
    DENSE_THINKER: (16, 24, 24),
    DENSE_TALKER: (16, 24, 24),
}
# Of queries, keys and values, and of no other projection.
_BIASED = ("qwen2", DENSE_THINKER, DENSE_TALKER)
# For a config.json without it.
_THETA = {THINKER: 1_000_000.0, DENSE_THINKER: 1_000_000.0, DENSE_TALKER: 1_000_000.0}
# What each way of scaling positions must have.
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}
# transformers' classes whose layers may have a sliding window, with the window of a config.json without it.
_WINDOWS = {"qwen2": 4096, "qwen3": 4096, "qwen3_moe": 4096, DENSE_THINKER: 32_768, DENSE_TALKER: 32_768}


def missing_field(error: KeyError) -> str:
    """Why a config.json without a field is refused."""
    return f"{error.args[0]!r} is missing; take the config.json that was published with the weights"


class UnsupportedDecoder(ValueError):
    """A decoder has a feature, or is of a family, that engine "omni" does not compute."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(where + reason)
        self.reason = reason


@dataclass(frozen=True)
class DecoderConfig:
    """A Llama-like decoder. Field names follow ``config.json``; lengths are in tokens.

    Attributes:
        rope_scaling: The checkpoint's parameters of a scaled rotary embedding, without theta; those of YaRN
            and of Llama 3 have ``factor`` and ``original_max_position_embeddings``.
        sliding_window: In ``sliding_layers`` a token attends so many tokens, itself counted; None if no layer
            has a window, or all texts are shorter.
        embedding_size: Width of the embeddings, if a strategy makes the input rows of narrower ones; None for
            ``hidden_size``.
        mrope_section: The pairs of channels that turn by time, height and width, if positions have three
            axes; None for plain positions.
        mrope_interleaved: True if these are interleaved as T H W T H W ..., the rest by time. If not, those
            by time come first, then those by height, then those by width.
        num_experts: 0 if no layer is sparse.
        norm_topk_prob: True if the weights of a token's experts are scaled to sum to 1.
        shared_expert_intermediate_size: Width of the expert that every token passes; 0 for none.
        dual_ffn: True if rows of audio have norms and an MLP of their own.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    sliding_window: int | None = None
    sliding_layers: frozenset[int] = frozenset()
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    embedding_size: int | None = None
    mrope_section: tuple[int, int, int] | None = None
    mrope_interleaved: bool = True
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    shared_expert_intermediate_size: int = 0
    dual_ffn: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def is_sparse(self, layer: int) -> bool:
        """True if the layer's MLP is a mixture of experts."""
        if self.model_type == TALKER:
            return True
        return (
            self.num_experts > 0
            and layer not in self.mlp_only_layers
            and (layer + 1) % self.decoder_sparse_step == 0
        )

    @classmethod
    def from_dir(cls, model_path: str | Path) -> DecoderConfig:
        """Reads ``config.json`` and ``generation_config.json``. The end tokens are those of both.

        Raises:
            FileNotFoundError: There is no ``config.json``.
            UnsupportedDecoder: The model is of a family, or has a feature, that is not supported.
            ValueError: A field is missing or wrong.
        """
        directory = Path(model_path)
        path = directory / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"{directory} is no model directory: it has no config.json")
        fields = json.loads(path.read_text())
        generation_path = directory / "generation_config.json"
        generation = json.loads(generation_path.read_text()) if generation_path.is_file() else {}
        # Either file may lack one of the ends: a fine-tune of a base model often has its own in one alone.
        fields["eos_token_id"] = end_tokens(fields, generation)
        try:
            return cls.from_dict(fields, fields.get("model_type"))
        except UnsupportedDecoder as error:
            raise UnsupportedDecoder(error.reason, f"{path}: ") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], model_type: str | None) -> DecoderConfig:
        """Reads a ``config.json``, or the part of one that describes a decoder.

        Args:
            fields: Of the file, or of the part.
            model_type: One of ``FAMILIES``. A part's own field is not read: what it is a part of says what
                it is, and some are published without the field.

        Raises:
            UnsupportedDecoder: The model has a feature that is not supported.
            ValueError: A field is missing or wrong.
        """
        try:
            return cls._from_dict(fields, model_type)
        except KeyError as error:
            raise ValueError(missing_field(error)) from None

    @classmethod
    def _from_dict(cls, fields: Mapping[str, Any], family: str | None) -> DecoderConfig:
        if family not in FAMILIES:
            raise UnsupportedDecoder(f"model_type {family!r} is none of {', '.join(FAMILIES)}")
        if fields.get("hidden_act", "silu") != "silu":
            raise UnsupportedDecoder(f"hidden_act {fields['hidden_act']!r} is not supported, only 'silu'")
        rope, theta = _rope(fields, family)
        interleaved = family in (THINKER, TALKER)
        mrope_section = _mrope_section(rope, _MROPE[family], interleaved) if family in _MROPE else None
        window, sliding = _sliding(fields, family)
        heads = int(fields["num_attention_heads"])
        attention_bias = bool(fields.get("attention_bias", False))
        return cls(
            model_type=family,
            vocab_size=int(fields["vocab_size"]),
            hidden_size=int(fields["hidden_size"]),
            intermediate_size=int(fields["intermediate_size"]),
            num_hidden_layers=int(fields["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(fields.get("num_key_value_heads") or heads),
            head_dim=int(fields.get("head_dim") or int(fields["hidden_size"]) // heads),
            max_position_embeddings=int(fields["max_position_embeddings"]),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=rope,
            sliding_window=window,
            sliding_layers=sliding,
            tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
            qkv_bias=family in _BIASED or attention_bias,
            o_bias=family not in _BIASED and attention_bias,
            mlp_bias=bool(fields.get("mlp_bias", False)),
            qk_norm=family.startswith("qwen3"),
            embedding_size=fields.get("embedding_size"),
            mrope_section=mrope_section,
            mrope_interleaved=interleaved,
            **(_experts(family, fields) if family in (THINKER, TALKER, "qwen3_moe") else {}),
            eos_token_ids=end_tokens(fields),
        )


def _rope(fields: Mapping[str, Any], family: str) -> tuple[dict[str, Any], float]:
    """The parameters of the rotary embedding, complete, and theta."""
    # Newer checkpoints keep theta and scaling together; older ones spell them apart.
    rope = dict(fields.get("rope_parameters") or fields.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or fields.get("rope_theta") or _THETA.get(family, 10000.0)
    older = rope.pop("type", None)
    kind = rope["rope_type"] = rope.get("rope_type") or older or "default"
    # Older checkpoints call the usual embedding by what their positions are.
    if kind == "mrope" and family in _MROPE:
        kind = rope["rope_type"] = "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedDecoder(f"rope_type {kind!r} is none of {', '.join(ROPE_TYPES)}")
    partial = rope.pop("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if partial not in (None, 1) or any(isinstance(value, Mapping) for value in rope.values()):
        raise UnsupportedDecoder("positions turn only a part of the channels, or otherwise in some layers")
    for name in ROPE_TYPES[kind]:
        rope[name] = float(rope[name])
    if kind in ("llama3", "yarn"):
        length = int(fields["max_position_embeddings"])
        own = fields.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
        rope["original_max_position_embeddings"] = original = int(own or length)
        rope["factor"] = float(rope.get("factor") or length / original)
    return rope, float(theta)


def _sliding(fields: Mapping[str, Any], family: str) -> tuple[int | None, frozenset[int]]:
    """The sliding window, and the layers that have it, as transformers' class of the family reads them."""
    uses = bool(fields.get("use_sliding_window"))
    count = int(fields["num_hidden_layers"])
    if family not in _WINDOWS:
        if uses and family in (THINKER, TALKER):
            raise UnsupportedDecoder("use_sliding_window: these layers attend the whole context")
        return None, frozenset()
    window = fields.get("sliding_window", _WINDOWS[family]) if uses else None
    first = int(fields.get("max_window_layers", 28))
    kinds = fields.get("layer_types")
    if family == "qwen3_moe":
        first, kinds = 0, None
    kinds = kinds or [
        "sliding_attention" if window and i >= first else "full_attention" for i in range(count)
    ]
    if len(kinds) != count or set(kinds) - {"sliding_attention", "full_attention"}:
        raise ValueError(
            f"layer_types must name full_attention or sliding_attention for each of {count} layers"
        )
    layers = frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    if not layers:
        return None, layers
    if not window:
        raise ValueError(
            "layer_types has sliding_attention, but use_sliding_window or sliding_window is not set"
        )
    # No text is longer than the window.
    if window >= int(fields["max_position_embeddings"]):
        return None, frozenset()
    return int(window), layers


def end_tokens(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text, by ``eos_token_id`` of any of a checkpoint's configs; perhaps none."""
    ends: list[int] = []
    for config in configs:
        given: int | Sequence[int] | None = config.get("eos_token_id")
        if given is not None:
            ends += map(int, given) if isinstance(given, Sequence) else [int(given)]
    return tuple(dict.fromkeys(ends))


def _experts(family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    num_experts = fields.get("num_experts") or fields.get("num_local_experts")
    if not num_experts:
        raise KeyError("num_experts")
    experts: dict[str, Any] = {
        "num_experts": int(num_experts),
        "num_experts_per_tok": int(fields["num_experts_per_tok"]),
        "moe_intermediate_size": int(fields["moe_intermediate_size"]),
        "norm_topk_prob": bool(fields.get("norm_topk_prob", family == THINKER)),
        "decoder_sparse_step": int(fields.get("decoder_sparse_step") or 1),
        "mlp_only_layers": tuple(fields.get("mlp_only_layers") or ()),
    }
    if family == TALKER:
        experts["shared_expert_intermediate_size"] = int(fields["shared_expert_intermediate_size"])
    return experts


def _mrope_section(
    rope: dict[str, Any], usual: tuple[int, int, int], interleaved: bool
) -> tuple[int, int, int]:
    for name in ("interleaved", "mrope_interleaved"):
        if rope.pop(name, interleaved) is not interleaved:
            does = "interleaves" if interleaved else "does not interleave"
            raise UnsupportedDecoder(
                f"{name} {str(not interleaved).lower()} is not supported: this model {does} its rotary "
                "sections"
            )
    time, height, width = rope.pop("mrope_section", usual)
    return int(time), int(height), int(width)
