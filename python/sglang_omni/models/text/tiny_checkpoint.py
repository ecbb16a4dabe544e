"""Small random language models in the hub's layout: ``make-tiny-checkpoint text``. Tokens are bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import byte_tokenizer, put_around, renumbered
from sglang_omni.published import published_model, shrunk
from sglang_omni.random_weights import mark_random

# By kind: the published model that is shrunk, the special tokens that its configs name, and its turns.
PUBLISHED = {
    "llama": "meta-llama/Llama-3.2-1B-Instruct",
    "qwen2": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen3": "Qwen/Qwen3-0.6B",
    "qwen3_moe": "Qwen/Qwen3-30B-A3B",
}
KINDS = tuple(PUBLISHED)
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
)
# Rows of the tables behind the tokenizer's, as in published checkpoints.
_SPARE_ROWS = 5
# Of a mixture.
_EXPERTS, _EXPERTS_OF_A_TOKEN = 8, 2

_CHAT = {
    _QWEN: ("<|im_start|>", "\n", "<|im_end|>\n"),
    _LLAMA: ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
}


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
        if self.kind == "qwen2" and self.head_dim * self.heads != self.hidden:
            raise ValueError(
                f"head_dim ({self.head_dim}) of a qwen2 must be hidden / heads ({self.hidden // self.heads})"
            )

    @property
    def special(self) -> tuple[str, ...]:
        """The special tokens, behind the bytes."""
        return _LLAMA if self.kind == "llama" else _QWEN

    @property
    def vocab_size(self) -> int:
        return 256 + len(self.special) + _SPARE_ROWS

    def config(self) -> dict[str, Any]:
        """``config.json``: the published one with these sizes."""
        published = published_model("text", PUBLISHED[self.kind]).config()
        changes: dict[str, Any] = {
            "torch_dtype": "float32",
            **self._ids(published),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
        }
        if self.kind != "qwen2":
            changes["head_dim"] = self.head_dim
        if self.kind == "llama":
            # Within what tests reach.
            changes["rope_scaling"] = {"original_max_position_embeddings": 64}
        else:
            changes["max_window_layers"] = self.layers
        if self.kind == "qwen3_moe":
            changes |= {
                "num_experts": _EXPERTS,
                "num_experts_per_tok": _EXPERTS_OF_A_TOKEN,
                "moe_intermediate_size": self.hidden,
            }
        return shrunk(published, changes)

    def generation_config(self) -> dict[str, Any]:
        """``generation_config.json``."""
        published = published_model("text", PUBLISHED[self.kind]).config("generation_config.json")
        return shrunk(published, self._ids(published))

    def _ids(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Those of tokens in a published config, as they are here."""
        tokens = published_model("text", PUBLISHED[self.kind]).added_tokens
        names = {token_id: token for token, token_id in tokens.items()}

        def here(token_id: int | list[int]) -> int | list[int]:
            if isinstance(token_id, list):
                return [256 + self.special.index(names[each]) for each in token_id]
            return 256 + self.special.index(names[token_id])

        found = ("bos_token_id", "eos_token_id", "pad_token_id")
        return {name: here(fields[name]) for name in found if name in fields}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, by their published names."""
        hidden, queries, keys = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        vocabulary = (self.vocab_size, hidden)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": vocabulary}
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            for part, width in (("q", queries), ("k", keys), ("v", keys)):
                shapes[f"{name}.self_attn.{part}_proj.weight"] = (width, hidden)
                if self.kind == "qwen2":
                    shapes[f"{name}.self_attn.{part}_proj.bias"] = (width,)
                if self.kind.startswith("qwen3") and part != "v":
                    shapes[f"{name}.self_attn.{part}_norm.weight"] = (self.head_dim,)
            shapes |= {
                f"{name}.self_attn.o_proj.weight": (hidden, queries),
                **dict(self._mlps(f"{name}.mlp")),
                f"{name}.input_layernorm.weight": (hidden,),
                f"{name}.post_attention_layernorm.weight": (hidden,),
            }
        shapes["model.norm.weight"] = (hidden,)
        return shapes if self.tied else {**shapes, "lm_head.weight": vocabulary}

    def _mlps(self, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The tensors of a layer's MLP, or of its experts and what chooses among them."""
        hidden, inner, names = self.hidden, 2 * self.hidden, [name]
        if self.kind == "qwen3_moe":
            yield f"{name}.gate.weight", (_EXPERTS, hidden)
            inner, names = hidden, [f"{name}.experts.{expert}" for expert in range(_EXPERTS)]
        for each in names:
            yield f"{each}.gate_proj.weight", (inner, hidden)
            yield f"{each}.up_proj.weight", (inner, hidden)
            yield f"{each}.down_proj.weight", (hidden, inner)


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
    return make_with(Path(path), seed, TinyTextShape(**shape), _write_tokenizer)


def make_with(
    path: Path, seed: int, sizes: TinyTextShape, write_tokenizer: Callable[[Path, TinyTextShape], None]
) -> Path:
    """``make`` with a tokenizer of the caller's."""
    import numpy as np
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    # Wide enough that greedy answers vary.
    weights = {
        name: (
            chance.uniform(0.5, 1.5, size) if name.endswith("norm.weight") else chance.normal(0, 0.25, size)
        ).astype(np.float32)
        for name, size in sizes.tensors().items()
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            weights[name][-_SPARE_ROWS:] = 0
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    _write_json(path / "config.json", sizes.config())
    _write_json(path / "generation_config.json", sizes.generation_config())
    write_tokenizer(path, sizes)
    mark_random(path)
    return path


def _write_tokenizer(path: Path, shape: TinyTextShape) -> None:
    """One token a byte, then the special tokens."""
    tokenizer = byte_tokenizer(shape.special)
    settings = published_model("text", PUBLISHED[shape.kind]).config("tokenizer_config.json")
    if shape.kind == "llama":
        put_around(tokenizer, settings["bos_token"])
    tokenizer.save(str(path / "tokenizer.json"))
    ids = {token: 256 + place for place, token in enumerate(shape.special)}
    settings = renumbered(settings, ids)
    if "additional_special_tokens" in settings:
        named = settings["additional_special_tokens"]
        settings["additional_special_tokens"] = [token for token in named if token in ids]
    settings["chat_template"] = _chat_template(shape)
    _write_json(path / "tokenizer_config.json", settings)


def _chat_template(shape: TinyTextShape) -> str:
    before, between, after = (repr(text) for text in _CHAT[shape.special])
    start = "{{ bos_token }}" if shape.kind == "llama" else ""
    return (
        f"{start}{{% for message in messages %}}"
        f"{{{{ {before} + message.role + {between} + message.content + {after} }}}}"
        f"{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {before} + 'assistant' + {between} }}}}{{% endif %}}"
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
