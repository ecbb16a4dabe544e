"""Reading of Fish Audio S2-Pro checkpoints: the settings, and tensors by the names of our decoders.

The published layout: ``config.json`` (model_type ``fish_qwen3_omni``, with ``text_config`` and
``audio_decoder_config``), a tokenizer, safetensors of the two decoders (``text_model.model.``, the slow one;
``audio_decoder.``, the fast one), and ``codec.pth``, the codec that turns codes into a waveform.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.code_predictor import PredictorConfig
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.loader import Checkpoint, OpenCheckpoint

MODEL_TYPE = "fish_qwen3_omni"
SLOW, FAST = "text_model.model.", "audio_decoder."

_RENAMED = {
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


class Heads(NamedTuple):
    """Numbers of query and key heads of a decoder's attention, and the size of a head."""

    queries: int
    keys: int
    dim: int


class FishCheckpoint(Checkpoint):
    """The tensors of one decoder, by Hugging Face's names in a Qwen3 decoder.

    Queries, keys and values are one tensor here. Rotary embeddings turn neighbouring channels; the channels
    of queries and keys are handed out in an order in which, as everywhere here, halves are turned.
    """

    def __init__(self, *args: Any, heads: Heads, **options: Any) -> None:
        super().__init__(*args, **options)
        self._heads = heads

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        prefix, layers, rest = name.partition("layers.")
        if not layers:
            return super().take(name, shape)
        index, _, part = rest.removesuffix(".weight").partition(".")
        layer = f"{prefix}layers.{index}"
        queries, keys, dim = self._heads
        if part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            rows = super().take(f"{layer}.attention.wqkv.weight", ((queries + 2 * keys) * dim, shape[1]))
            sizes = dict(zip("qkv", rows.split([queries * dim, keys * dim, keys * dim]), strict=True))
            which = part.removeprefix("self_attn.")[0]
            return sizes[which] if which == "v" else _halves(sizes[which], dim)
        tensor = super().take(f"{layer}.{_RENAMED[part]}.weight", shape)
        return _halves(tensor, dim) if part in ("self_attn.q_norm", "self_attn.k_norm") else tensor


def _halves(rows: Tensor, dim: int) -> Tensor:
    """The rows with each head's ``dim`` channels reordered: even channels first, then odd ones."""
    return rows.view(-1, dim // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class FishS2Checkpoint:
    """
    Attributes:
        slow: The decoder that reads text and frames and chooses each frame's first code, as a text token.
        fast: The decoder that chooses a frame's other codes.
        codebook_size: The codec's codes in each group.
        semantic_start, semantic_end: First and last token that stand for a first code.
        end: Token that ends the speech.
    """

    path: Path
    slow: DecoderConfig
    fast: PredictorConfig
    codebook_size: int
    semantic_start: int
    semantic_end: int
    end: int

    @classmethod
    def from_dir(cls, model_path: str | Path) -> FishS2Checkpoint:
        """
        Raises:
            FileNotFoundError: There is no ``config.json``.
            ValueError: The checkpoint is that of another model, or of an unsupported variant.
        """
        directory = Path(model_path).expanduser()
        path = directory / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"{directory} is no Fish Audio S2 checkpoint: it has no config.json")
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("model_type") != MODEL_TYPE:
            raise ValueError(
                f"{path} is of model_type {config.get('model_type')!r}; Fish Audio S2's is {MODEL_TYPE!r}"
            )
        text, audio = config["text_config"], config["audio_decoder_config"]
        for name, part in (("text_config", text), ("audio_decoder_config", audio)):
            for flag in ("use_moe", "attention_qkv_bias", "attention_o_bias"):
                if part.get(flag):
                    raise ValueError(f"{path}: {name}.{flag} is not supported")
        if audio.get("text_dim", text["dim"]) != audio["dim"] or audio["dim"] != text["dim"]:
            raise ValueError(f"{path}: decoders of different widths (dim, text_dim) are not supported")
        start, last = int(config["semantic_start_token_id"]), int(config["semantic_end_token_id"])
        if last - start + 1 > int(audio["vocab_size"]):
            raise ValueError(f"{path}: there are more semantic tokens than codes of the audio decoder")
        return cls(
            path=directory,
            slow=_slow(text, int(config["eos_token_id"])),
            fast=_fast(audio),
            codebook_size=last - start + 1,
            semantic_start=start,
            semantic_end=last,
            end=int(config["eos_token_id"]),
        )

    def check_codec(self, codebook_sizes: Sequence[int]) -> None:
        """
        Args:
            codebook_sizes: Codes of each group, as the codec has them.

        Raises:
            ValueError: They are not those that the decoders choose.
        """
        groups = self.fast.num_code_groups
        if len(codebook_sizes) != groups or codebook_sizes[0] != self.codebook_size:
            raise ValueError(
                f"{self.path}: the codec has {len(codebook_sizes)} codes a frame, the first of "
                f"{codebook_sizes[0]}; the decoders choose {groups}, the first of {self.codebook_size}: "
                "codec.pth is that of another model"
            )

    @property
    def open_slow(self) -> OpenCheckpoint:
        config = self.slow
        heads = Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        return partial(FishCheckpoint, heads=heads)

    def open_fast(self, dtype: torch.dtype, device: str = "cpu") -> FishCheckpoint:
        config = self.fast
        heads = Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        return FishCheckpoint(self.path, dtype, FAST, heads=heads, device=device)


def _slow(text: Mapping[str, Any], end: int) -> DecoderConfig:
    return DecoderConfig.from_dict(
        {
            "vocab_size": text["vocab_size"],
            "hidden_size": text["dim"],
            "intermediate_size": text["intermediate_size"],
            "num_hidden_layers": text["n_layer"],
            "num_attention_heads": text["n_head"],
            "num_key_value_heads": text["n_local_heads"],
            "head_dim": text["head_dim"],
            "max_position_embeddings": text["max_seq_len"],
            "rms_norm_eps": text["norm_eps"],
            "rope_theta": text["rope_base"],
            "tie_word_embeddings": text["tie_word_embeddings"],
            "eos_token_id": end,
        },
        "qwen3" if text["attention_qk_norm"] else "llama",
    )


def _fast(audio: Mapping[str, Any]) -> PredictorConfig:
    return PredictorConfig(
        vocab_size=int(audio["vocab_size"]),
        hidden_size=int(audio["dim"]),
        intermediate_size=int(audio["intermediate_size"]),
        num_hidden_layers=int(audio["n_layer"]),
        num_attention_heads=int(audio["n_head"]),
        num_key_value_heads=int(audio["n_local_heads"]),
        head_dim=int(audio["head_dim"]),
        rms_norm_eps=float(audio["norm_eps"]),
        rope_theta=float(audio["rope_base"]),
        num_code_groups=int(audio["num_codebooks"]),
        qk_norm=bool(audio["attention_qk_norm"]),
    )
