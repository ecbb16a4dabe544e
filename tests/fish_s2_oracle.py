"""A tiny random Fish Audio S2-Pro in its published layout, and a plain loop that computes what it says.

The loop recomputes everything from scratch for every code: no cache, no batch, no fused weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

TEXT_TOKENS, CODES, GROUPS = 120, 40, 5
START, END = 130, 125
COMMON: dict[str, Any] = {
    "attention_o_bias": False,
    "attention_qkv_bias": False,
    "dim": 48,
    "head_dim": 16,
    "intermediate_size": 80,
    "n_head": 4,
    "n_local_heads": 2,
    "norm_eps": 1e-6,
    "rope_base": 1_000_000,
    "use_moe": False,
}
CONFIG: dict[str, Any] = {
    "model_type": "fish_qwen3_omni",
    "dtype": "bfloat16",
    "eos_token_id": END,
    "semantic_start_token_id": START,
    "semantic_end_token_id": START + CODES - 1,
    "text_config": {
        **COMMON,
        "model_type": "fish_qwen3",
        "attention_qk_norm": True,
        "max_seq_len": 512,
        "n_layer": 3,
        "tie_word_embeddings": True,
        "vocab_size": START + CODES + 6,
    },
    "audio_decoder_config": {
        **COMMON,
        "model_type": "fish_qwen3_audio_decoder",
        "attention_qk_norm": False,
        "max_seq_len": GROUPS + 1,
        "n_layer": 2,
        "num_codebooks": GROUPS,
        "text_dim": 48,
        "tie_word_embeddings": False,
        # More than there are codes, to see that the rest are never chosen.
        "vocab_size": CODES + 8,
    },
}


class FishS2:
    """Weights by their published names, float32."""

    def __init__(self, path: Path, weights: dict[str, Tensor]) -> None:
        self.path = path
        self.weights = weights

    @classmethod
    def make(cls, path: Path, *, seed: int) -> FishS2:
        """Writes the checkpoint to ``path``, in two shards."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, gain: float = 1.0) -> Tensor:
            return torch.randn(*shape, generator=generator) * gain

        dim = COMMON["dim"]
        text, audio = CONFIG["text_config"], CONFIG["audio_decoder_config"]
        weights = {
            # Small beside what layers add, or tied embeddings would make each token repeat the last.
            "text_model.model.embeddings.weight": normal(text["vocab_size"], dim, gain=0.2),
            "text_model.model.norm.weight": 1 + normal(dim, gain=0.2),
            "audio_decoder.codebook_embeddings.weight": normal(GROUPS * audio["vocab_size"], dim, gain=0.2),
            "audio_decoder.embeddings.weight": normal(audio["vocab_size"], dim),
            "audio_decoder.norm.weight": 1 + normal(dim, gain=0.2),
            "audio_decoder.output.weight": normal(audio["vocab_size"], dim, gain=0.3),
        }
        for prefix, part in (("text_model.model", text), ("audio_decoder", audio)):
            for layer in range(part["n_layer"]):
                name = f"{prefix}.layers.{layer}"
                inner, heads = part["intermediate_size"], part["n_head"]
                width = (heads + 2 * part["n_local_heads"]) * part["head_dim"]
                weights |= {
                    f"{name}.attention.wqkv.weight": normal(width, dim, gain=dim**-0.5),
                    f"{name}.attention.wo.weight": normal(dim, heads * part["head_dim"], gain=0.5),
                    f"{name}.attention_norm.weight": 1 + normal(dim, gain=0.2),
                    f"{name}.ffn_norm.weight": 1 + normal(dim, gain=0.2),
                    f"{name}.feed_forward.w1.weight": normal(inner, dim, gain=dim**-0.5),
                    f"{name}.feed_forward.w2.weight": normal(dim, inner, gain=0.5),
                    f"{name}.feed_forward.w3.weight": normal(inner, dim, gain=dim**-0.5),
                }
                if part["attention_qk_norm"]:
                    for which in "qk":
                        weights[f"{name}.attention.{which}_norm.weight"] = 1 + normal(
                            part["head_dim"], gain=0.3
                        )
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(CONFIG))
        names = sorted(weights)
        shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
        for file, members in shards.items():
            save_file({name: weights[name].contiguous() for name in members}, path / file)
        (path / "tokenizer.json").write_text(json.dumps(_tokenizer()))
        index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        return cls(path, weights)

    @torch.inference_mode()
    def speak(
        self, prompt: list[int], max_new_tokens: int, prompt_frames: dict[int, list[int]] | None = None
    ) -> tuple[list[int], list[list[int]]]:
        """Greedy tokens of the slow decoder, with the end where it came to one, and the frames."""
        tokens, frames = list(prompt), dict(prompt_frames or {})
        embeddings = self.weights["text_model.model.embeddings.weight"]
        spoken: list[list[int]] = []
        while len(tokens) - len(prompt) < max_new_tokens:
            rows = torch.stack([self._row(token, frames.get(i)) for i, token in enumerate(tokens)])
            hidden = self._decode("text_model.model", CONFIG["text_config"], rows)[-1]
            logits = linear(hidden, embeddings)
            token = max((END, *range(START, START + CODES)), key=lambda t: float(logits[t]))
            tokens.append(token)
            if token == END:
                break
            frame = [token - START]
            for _ in range(1, GROUPS):
                fast = [hidden, *(self.weights["audio_decoder.embeddings.weight"][code] for code in frame)]
                out = self._decode("audio_decoder", CONFIG["audio_decoder_config"], torch.stack(fast))[-1]
                frame.append(int((self.weights["audio_decoder.output.weight"] @ out)[:CODES].argmax()))
            frames[len(tokens) - 1] = frame
            spoken.append(frame)
        return tokens[len(prompt) :], spoken

    def _row(self, token: int, frame: list[int] | None) -> Tensor:
        row = self.weights["text_model.model.embeddings.weight"][token]
        if frame is None:
            return row
        table = self.weights["audio_decoder.codebook_embeddings.weight"]
        size = CONFIG["audio_decoder_config"]["vocab_size"]
        return (row + sum(table[g * size + code] for g, code in enumerate(frame))) / (GROUPS + 1) ** 0.5

    def _decode(self, prefix: str, part: dict[str, Any], rows: Tensor) -> Tensor:
        heads, kv_heads, dim = part["n_head"], part["n_local_heads"], part["head_dim"]
        x = rows
        for layer in range(part["n_layer"]):
            weight = {
                name.removeprefix(f"{prefix}.layers.{layer}.").removesuffix(".weight"): tensor
                for name, tensor in self.weights.items()
                if name.startswith(f"{prefix}.layers.{layer}.")
            }
            qkv = linear(_rms(x, weight["attention_norm"]), weight["attention.wqkv"])
            q, k, v = qkv.view(len(x), -1, dim).split([heads, kv_heads, kv_heads], dim=1)
            if part["attention_qk_norm"]:
                q, k = _rms(q, weight["attention.q_norm"]), _rms(k, weight["attention.k_norm"])
            q, k = _rotate(q, part["rope_base"]), _rotate(k, part["rope_base"])
            k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
            attended = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(attended.transpose(0, 1).reshape(len(x), -1), weight["attention.wo"])
            y = _rms(x, weight["ffn_norm"])
            gated = silu(linear(y, weight["feed_forward.w1"])) * linear(y, weight["feed_forward.w3"])
            x = x + linear(gated, weight["feed_forward.w2"])
        return _rms(x, self.weights[f"{prefix}.norm.weight"])


def _tokenizer() -> dict[str, Any]:
    """One token a printable character; the special ones at their places among the text's tokens."""
    special = {"<|im_start|>": 124, "<|im_end|>": END, "<|voice|>": 126}
    vocabulary = {"\n": 0} | {chr(32 + i): 1 + i for i in range(95)} | special
    added = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for text, i in special.items()
    ]
    split = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": " "}
    return {"version": "1.0", "added_tokens": added, "pre_tokenizer": split, "model": model}


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + COMMON["norm_eps"]) * weight


def _rotate(x: Tensor, base: float) -> Tensor:
    """(T, heads, dim): neighbouring channels are a complex number, turned by its place's angle."""
    dim = x.shape[-1]
    frequencies = base ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(len(x)).float(), frequencies)
    turn = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)
