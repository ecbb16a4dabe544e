"""Small random language models in the hub's layout: ``make-tiny-checkpoint text``. Tokens are bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_omni.models.tiny_shapes import option
from sglang_omni.random_weights import mark_random

KINDS = ("llama", "qwen2", "qwen3")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyTextShape:
    """The sizes of a checkpoint; each is an option of ``make-tiny-checkpoint``.

    Raises:
        ValueError: The sizes contradict each other.
    """

    kind: str = option("llama", f"model_type: {', '.join(KINDS)}")
    layers: int = option(2, "layers of the decoder")
    hidden: int = option(64, "its hidden size")
    heads: int = option(4, "attention heads")
    kv_heads: int = option(2, "key and value heads")
    head_dim: int = option(16, "size of each head")
    context: int = option(2048, "longest prompt and answer, in tokens")
    tied: bool = option(False, "whether the output has the embeddings' weights")

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        for name, value in vars(self).items():
            if type(value) is int and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, got {self.head_dim}")

    def config(self) -> dict[str, Any]:
        """``config.json``."""
        return {
            "architectures": [f"{self.kind.capitalize()}ForCausalLM"],
            "model_type": self.kind,
            "dtype": "float32",
            "bos_token_id": None,
            "eos_token_id": 258,
            "pad_token_id": 256,
            "vocab_size": 256 + len(_SPECIAL),
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": self.tied,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, by their published names."""
        hidden, queries, keys = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        vocabulary = (256 + len(_SPECIAL), hidden)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": vocabulary}
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            for part, width in (("q", queries), ("k", keys), ("v", keys)):
                shapes[f"{name}.self_attn.{part}_proj.weight"] = (width, hidden)
                if self.kind == "qwen2":
                    shapes[f"{name}.self_attn.{part}_proj.bias"] = (width,)
                if self.kind == "qwen3" and part != "v":
                    shapes[f"{name}.self_attn.{part}_norm.weight"] = (self.head_dim,)
            shapes |= {
                f"{name}.self_attn.o_proj.weight": (hidden, queries),
                f"{name}.mlp.gate_proj.weight": (2 * hidden, hidden),
                f"{name}.mlp.up_proj.weight": (2 * hidden, hidden),
                f"{name}.mlp.down_proj.weight": (hidden, 2 * hidden),
                f"{name}.input_layernorm.weight": (hidden,),
                f"{name}.post_attention_layernorm.weight": (hidden,),
            }
        shapes["model.norm.weight"] = (hidden,)
        return shapes if self.tied else {**shapes, "lm_head.weight": vocabulary}


SHAPE = TinyTextShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a random checkpoint, in float32. Equal arguments give equal bytes.

    Args:
        path: Its directory, created if it does not exist; files of the same names are replaced.
        seed: Of the weights.
        shape: Fields of ``TinyTextShape``.

    Returns:
        ``path``.

    Raises:
        TypeError, ValueError: A field is not known, or the sizes contradict each other.
    """
    import numpy as np
    from safetensors.numpy import save_file

    sizes = TinyTextShape(**shape)
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    # Wide enough that greedy answers vary.
    weights = {
        name: (
            chance.uniform(0.5, 1.5, size) if name.endswith("norm.weight") else chance.normal(0, 0.25, size)
        ).astype(np.float32)
        for name, size in sizes.tensors().items()
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    _write_json(path / "config.json", sizes.config())
    _write_json(
        path / "generation_config.json", {"do_sample": False, "eos_token_id": 258, "pad_token_id": 256}
    )
    _write_tokenizer(path)
    mark_random(path)
    return path


def _write_tokenizer(path: Path) -> None:
    """One token a byte, then the special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: token for token, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    _write_json(path / "tokenizer_config.json", settings)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
