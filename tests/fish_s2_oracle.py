"""A tiny random Fish Audio S2-Pro in its published layout, and plain loops that compute what it says.

The decoders' loop recomputes everything from scratch for every code: no cache, no batch, no fused weights.
``fish_codec_oracle`` computes the codec.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from sglang_omni.models.fish_s2_pro import tiny_checkpoint

# Of the codec, frames of 64 samples: the published rates would only take longer.
SHAPE: dict[str, Any] = {"encoder_rates": (2, 2, 4), "decoder_rates": (4, 2, 2), "encoder_channels": 8}
_SIZES = tiny_checkpoint.TinyFishShape(**SHAPE)
CONFIG = tiny_checkpoint.config_of(_SIZES)
TEXT_TOKENS, CODES, GROUPS = 120, _SIZES.codes, _SIZES.groups
START, END = CONFIG["semantic_start_token_id"], CONFIG["eos_token_id"]
FRAME = 64


def authors(logits: Tensor, *, temperature: float, top_p: float = 1.0, top_k: int | None = None) -> Tensor:
    """The probabilities (vocab_size,) of ``logits_to_probs`` of fishaudio/fish-speech at 3dd1f85c.

    Its steps, one token at a time: tokens in descending order of their probability at a temperature of 1; a
    token is left out once the sum up to and with it exceeds ``top_p``, or once ``top_k`` are before it, but
    never the first; the rest is divided by the temperature.
    """
    plain = logits.softmax(-1)
    total, kept = torch.zeros(()), torch.full_like(logits, float("-inf"))
    for place, token in enumerate(logits.argsort(descending=True).tolist()):
        total = total + plain[token]
        if place and (total > top_p or (top_k is not None and place >= top_k)):
            break
        kept[token] = logits[token]
    return (kept / max(temperature, 1e-5)).softmax(-1)


def drawn(logits: Tensor, number: float, **sampling: Any) -> int:
    """The first token, from the likeliest on, at which the sum of probabilities exceeds ``number``."""
    order = logits.argsort(descending=True)
    passed = authors(logits, **sampling)[order].double().cumsum(0)
    return int(order[int((passed > number * passed[-1]).int().argmax())])


class Likeliest:
    def first(self, logits: Tensor, before: Sequence[int]) -> int:
        return int(logits.argmax())

    def residual(self, logits: Tensor) -> int:
        return int(logits.argmax())


LIKELIEST = Likeliest()


class Drawn:
    """Draws of the authors' ``decode_one_token_ar``, with a request's random numbers in their order."""

    def __init__(self, seed: int, **sampling: Any) -> None:
        self._numbers = random.Random(seed)
        self._sampling = sampling

    def first(self, logits: Tensor, before: Sequence[int]) -> int:
        """Twice if the first draw is one of the last ten tokens, then at a temperature of 1."""
        number, other = self._numbers.random(), self._numbers.random()
        token = drawn(logits, number, **self._sampling)
        if token not in before[-10:]:
            return token
        return drawn(logits, other, **{**self._sampling, "temperature": 1.0, "top_p": 0.9})

    def residual(self, logits: Tensor) -> int:
        return drawn(logits, self._numbers.random(), **self._sampling)


class FishS2:
    """Weights by their published names, float32.

    Attributes:
        groups, codes: Codes of a frame, and the values of the first of them.
        start, end: Tokens: of code 0 of the first of them, and the end of a speech.
    """

    def __init__(self, path: Path, weights: dict[str, Tensor]) -> None:
        self.path = path
        self.weights = weights
        self.config = json.loads((path / "config.json").read_bytes())
        self.groups: int = self.config["audio_decoder_config"]["num_codebooks"]
        self.start: int = self.config["semantic_start_token_id"]
        self.end: int = self.config["eos_token_id"]
        self.codes: int = self.config["semantic_end_token_id"] - self.start + 1

    @classmethod
    def make(cls, path: Path, *, seed: int, **shape: Any) -> FishS2:
        """Writes the checkpoint to ``path``; ``shape`` are fields that differ from ``SHAPE``'s."""
        tiny_checkpoint.make(path, seed, **{**SHAPE, **shape})
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> FishS2:
        """Loads the checkpoint that is in ``path``."""
        weights: dict[str, Tensor] = {}
        for shard in sorted(path.glob("model-*-of-*.safetensors")):
            weights |= {name: tensor.float() for name, tensor in load_file(shard).items()}
        return cls(path, weights)

    @torch.inference_mode()
    def speak(
        self,
        prompt: list[int],
        max_new_tokens: int,
        prompt_frames: dict[int, list[int]] | None = None,
        choose: Likeliest | Drawn = LIKELIEST,
    ) -> tuple[list[int], list[list[int]]]:
        """Tokens of the slow decoder, with the end where it came to one, and the frames."""
        tokens, frames = list(prompt), dict(prompt_frames or {})
        embeddings = self.weights["text_model.model.embeddings.weight"]
        spoken: list[list[int]] = []
        while len(tokens) - len(prompt) < max_new_tokens:
            rows = torch.stack([self._row(token, frames.get(i)) for i, token in enumerate(tokens)])
            hidden = self._decode("text_model.model", self.config["text_config"], rows)[-1]
            logits = torch.full((len(embeddings),), float("-inf"))
            speech = [self.end, *range(self.start, self.start + self.codes)]
            logits[speech] = linear(hidden, embeddings[speech])
            token = choose.first(logits, tokens[len(prompt) :])
            tokens.append(token)
            if token == self.end:
                break
            frame = [token - self.start]
            for _ in range(1, self.groups):
                fast = [hidden, *(self.weights["audio_decoder.embeddings.weight"][code] for code in frame)]
                out = self._decode("audio_decoder", self.config["audio_decoder_config"], torch.stack(fast))[
                    -1
                ]
                residual = (self.weights["audio_decoder.output.weight"] @ out)[: self.codes]
                frame.append(choose.residual(residual))
            frames[len(tokens) - 1] = frame
            spoken.append(frame)
        return tokens[len(prompt) :], spoken

    def _row(self, token: int, frame: list[int] | None) -> Tensor:
        row = self.weights["text_model.model.embeddings.weight"][token]
        if frame is None:
            return row
        table = self.weights["audio_decoder.codebook_embeddings.weight"]
        size = self.config["audio_decoder_config"]["vocab_size"]
        return (row + sum(table[g * size + code] for g, code in enumerate(frame))) / (self.groups + 1) ** 0.5

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


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["text_config"]["norm_eps"]) * weight


def _rotate(x: Tensor, base: float) -> Tensor:
    """(T, heads, dim): neighbouring channels are a complex number, turned by its place's angle."""
    dim = x.shape[-1]
    frequencies = base ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(len(x)).float(), frequencies)
    turn = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)
