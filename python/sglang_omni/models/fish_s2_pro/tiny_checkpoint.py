"""Writing of tiny random checkpoints in Fish Audio S2-Pro's published layout, for tests and trials."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.published import TOKEN, published_model, shrunk
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    from torch import Generator, Tensor

# The codec's published rates: 2 * 4 * 8 * 8 samples a row, and 2 * 2 rows a frame.
_DILATIONS = (1, 3, 9)
_KERNEL = 7


@dataclass(frozen=True)
class TinyFishShape:
    """The sizes of a checkpoint. The codec's rates are factors: samples of a row, then rows of a frame."""

    text_tokens: int = option(130, "tokens of the vocabulary, without those of codes")
    codes: int = option(40, "codes of the semantic codebook")
    residual_codes: int = option(32, "codes of each other codebook")
    groups: int = option(5, "codes of a frame")
    dim: int = option(48, "hidden size of both decoders")
    layers: int = option(3, "layers of the decoder over time")
    fast_layers: int = option(2, "layers of the decoder of a frame")
    heads: int = option(4, "attention heads of both")
    kv_heads: int = option(2, "their key and value heads")
    head_dim: int = option(16, "size of each of these")
    intermediate: int = option(80, "inner size of their MLPs")
    context: int = option(4096, "longest prompt and speech together, in tokens")
    encoder_rates: tuple[int, ...] = option((2, 4, 8, 8), "of the codec's encoder; each doubles channels")
    decoder_rates: tuple[int, ...] = option((8, 8, 4, 2), "of the codec's decoder; each halves channels")
    downsample: tuple[int, ...] = option((2, 2), "rates from a frame to rows")
    encoder_channels: int = option(4, "channels of the codec's first convolution")
    decoder_channels: int = option(32, "channels of the codec's decoder")
    codec_layers: int = option(2, "layers of the codec's transformers")
    codec_heads: int = option(1, "attention heads of these")
    codec_head_dim: int = option(16, "size of each of these")
    codec_positions: int = option(64, "length of the tables that the codec's file holds of positions")

    @property
    def latent(self) -> int:
        """Channels of the codec's rows."""
        return self.encoder_channels * 2 ** len(self.encoder_rates)


SHAPE = TinyFishShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a random checkpoint with all the files of a published one, in two shards.

    Args:
        path: Created if it does not exist; files of the same names are replaced.
        seed: Of the weights.
        shape: Fields of ``TinyFishShape``.

    Returns:
        ``path``.

    Raises:
        TypeError: There is no such field.
    """
    import torch
    from safetensors.torch import save_file

    sizes = TinyFishShape(**shape)
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(sizes)))
    _write_tokenizer(directory, sizes)
    weights = _decoders(sizes, _Random(seed))
    names = sorted(weights)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, members in shards.items():
        save_file({name: weights[name].contiguous() for name in members}, directory / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(_codec(sizes, _Random(seed)), directory / "codec.pth")
    mark_random(directory)
    return directory


def config_of(shape: TinyFishShape) -> dict[str, Any]:
    """``config.json``: the published one with these sizes and the ids of its tokenizer."""
    ids = _special_tokens(shape)
    common: dict[str, Any] = {
        "dim": shape.dim,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "n_head": shape.heads,
        "n_local_heads": shape.kv_heads,
    }
    start = shape.text_tokens
    return shrunk(
        published_model("fish_s2_pro").config(),
        {
            "audio_pad_token_id": ids["<|audio_pad|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|pad|>"],
            "semantic_start_token_id": start,
            "semantic_end_token_id": start + shape.codes - 1,
            "text_config": {
                **common,
                "max_seq_len": shape.context,
                "n_layer": shape.layers,
                "vocab_size": start + shape.codes + 6,
            },
            "audio_decoder_config": {
                **common,
                "max_seq_len": shape.groups + 1,
                "n_layer": shape.fast_layers,
                "num_codebooks": shape.groups,
                "text_dim": shape.dim,
                # More than there are codes, to see that the rest are never chosen.
                "vocab_size": shape.codes + 8,
            },
        },
    )


def _special_tokens(shape: TinyFishShape) -> dict[str, int]:
    """Ids by token: just before those of codes, in the published order. A vocabulary of the published size
    has the published ids."""
    published = published_model("fish_s2_pro")
    first_code = published.config()["semantic_start_token_id"]
    named = [token for token, token_id in published.added_tokens.items() if token_id < first_code]
    codes = [f"<|semantic:{code}|>" for code in range(shape.codes)]
    ids = {token: shape.text_tokens - len(named) + i for i, token in enumerate([*named, *codes])}
    if shape.text_tokens == first_code:
        ids |= {token: published.added_tokens[token] for token in named}
    return ids


class _Random:
    """Normal tensors, the same for the same seed and calls."""

    def __init__(self, seed: int) -> None:
        import torch

        self._generator: Generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, gain: float = 1.0) -> Tensor:
        import torch

        return torch.randn(*shape, generator=self._generator) * gain


def _decoders(shape: TinyFishShape, normal: _Random) -> dict[str, Tensor]:
    config = config_of(shape)
    text, audio = config["text_config"], config["audio_decoder_config"]
    dim = shape.dim
    # Small beside what layers add, or tied embeddings would make each token repeat the last.
    table = normal(text["vocab_size"], dim, gain=0.2)
    # Of the rows drawn, those with which few texts end their speech at once.
    for back, token in enumerate(("<|im_start|>", "<|im_end|>", "<|voice|>")):
        rows = [_special_tokens(shape)[token], shape.text_tokens - 6 + back]
        table[rows] = table[rows[::-1]]
    weights = {
        "text_model.model.embeddings.weight": table,
        "text_model.model.norm.weight": 1 + normal(dim, gain=0.2),
        "audio_decoder.codebook_embeddings.weight": normal(shape.groups * audio["vocab_size"], dim, gain=0.2),
        "audio_decoder.embeddings.weight": normal(audio["vocab_size"], dim),
        "audio_decoder.norm.weight": 1 + normal(dim, gain=0.2),
        "audio_decoder.output.weight": normal(audio["vocab_size"], dim, gain=0.3),
    }
    for prefix, part in (("text_model.model", text), ("audio_decoder", audio)):
        for layer in range(part["n_layer"]):
            name = f"{prefix}.layers.{layer}"
            width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
            weights |= {
                f"{name}.attention.wqkv.weight": normal(width, dim, gain=dim**-0.5),
                f"{name}.attention.wo.weight": normal(dim, shape.heads * shape.head_dim, gain=0.5),
                f"{name}.attention_norm.weight": 1 + normal(dim, gain=0.2),
                f"{name}.ffn_norm.weight": 1 + normal(dim, gain=0.2),
                f"{name}.feed_forward.w1.weight": normal(shape.intermediate, dim, gain=dim**-0.5),
                f"{name}.feed_forward.w2.weight": normal(dim, shape.intermediate, gain=0.5),
                f"{name}.feed_forward.w3.weight": normal(shape.intermediate, dim, gain=dim**-0.5),
            }
            if part["attention_qk_norm"]:
                for which in "qk":
                    weights[f"{name}.attention.{which}_norm.weight"] = 1 + normal(shape.head_dim, gain=0.3)
    return weights


def _codec(shape: TinyFishShape, normal: _Random) -> dict[str, Tensor]:
    """The state dict of the codec, with norms of both kinds, and the tables that the published one holds."""
    codec = _CodecTensors(normal)
    channels, latent = shape.encoder_channels, shape.latent
    codec.conv("encoder.block.0.conv", channels, 1, _KERNEL)
    last = len(shape.encoder_rates)
    for number, rate in enumerate(shape.encoder_rates, start=1):
        name = f"encoder.block.{number}.block"
        codec.units(name, 0, channels)
        codec.snake(f"{name}.3", channels)
        codec.conv(f"{name}.4.conv", 2 * channels, channels, 2 * rate)
        channels *= 2
        if number == last:
            codec.transformer(f"{name}.5", channels, shape)
    codec.snake(f"encoder.block.{last + 1}", channels)
    codec.conv(f"encoder.block.{last + 2}.conv", latent, channels, 3)
    for number, factor in enumerate(shape.downsample):
        codec.plain_conv(f"quantizer.downsample.{number}.0.conv", latent, latent, factor)
        codec.convnext(f"quantizer.downsample.{number}.1", latent)
    for number, factor in enumerate(reversed(shape.downsample)):
        codec.plain_conv(f"quantizer.upsample.{number}.0.conv", latent, latent, factor)
        codec.convnext(f"quantizer.upsample.{number}.1", latent)
    for module in ("pre_module", "post_module"):
        codec.transformer(f"quantizer.{module}", latent, shape)
    codec.codebook("quantizer.semantic_quantizer.quantizers.0", shape.codes, latent)
    for number in range(shape.groups - 1):
        codec.codebook(f"quantizer.quantizer.quantizers.{number}", shape.residual_codes, latent)
    channels = shape.decoder_channels
    codec.conv("decoder.model.0.conv", channels, latent, _KERNEL)
    last = len(shape.decoder_rates)
    for number, rate in enumerate(shape.decoder_rates, start=1):
        name = f"decoder.model.{number}.block"
        codec.snake(f"{name}.0", channels)
        codec.conv(f"{name}.1.conv", channels, channels // 2, 2 * rate, transposed=True)
        channels //= 2
        codec.units(name, 2, channels)
    codec.snake(f"decoder.model.{last + 1}", channels)
    # Quiet enough not to be clipped.
    codec.conv(f"decoder.model.{last + 2}.conv", 1, channels, _KERNEL, gain=0.2)
    return codec.tensors


class _CodecTensors:
    """Random tensors by their names in ``codec.pth``; magnitudes stay near 1 from layer to layer."""

    def __init__(self, normal: _Random) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._normal = normal

    def plain_conv(self, name: str, outer: int, inner: int, kernel: int) -> None:
        self._add(f"{name}.weight", outer, inner, kernel, gain=(inner * kernel) ** -0.5)
        self._add(f"{name}.bias", outer, gain=0.05)

    def conv(
        self, name: str, outer: int, inner: int, kernel: int, *, transposed: bool = False, gain: float = 1.0
    ) -> None:
        """With its weight as lengths and directions; a transposed one has (outer, inner) input and output."""
        normal = self._normal
        fan_in = 2 * outer if transposed else inner * kernel
        length = gain * (inner * kernel / fan_in) ** 0.5
        lengths = (1 + normal(outer, 1, 1, gain=0.1)).abs() * length
        self.tensors[f"{name}.parametrizations.weight.original0"] = lengths
        self._add(f"{name}.parametrizations.weight.original1", outer, inner, kernel)
        self._add(f"{name}.bias", inner if transposed else outer, gain=0.05)

    def snake(self, name: str, channels: int) -> None:
        self.tensors[f"{name}.alpha"] = 1 + self._normal(1, channels, 1, gain=0.2)

    def units(self, name: str, first: int, channels: int) -> None:
        for number in range(first, first + len(_DILATIONS)):
            self.snake(f"{name}.{number}.block.0", channels)
            self.conv(f"{name}.{number}.block.1.conv", channels, channels, _KERNEL)
            self.snake(f"{name}.{number}.block.2", channels)
            self.conv(f"{name}.{number}.block.3.conv", channels, channels, 1, gain=0.3)

    def convnext(self, name: str, channels: int) -> None:
        inner = 4 * channels
        self._add(f"{name}.dwconv.conv.weight", channels, 1, _KERNEL, gain=_KERNEL**-0.5)
        self._add(f"{name}.dwconv.conv.bias", channels, gain=0.05)
        self.tensors[f"{name}.norm.weight"] = 1 + self._normal(channels, gain=0.1)
        self._add(f"{name}.norm.bias", channels, gain=0.05)
        self._add(f"{name}.pwconv1.weight", inner, channels, gain=channels**-0.5)
        self._add(f"{name}.pwconv1.bias", inner, gain=0.05)
        self._add(f"{name}.pwconv2.weight", channels, inner, gain=inner**-0.5)
        self._add(f"{name}.pwconv2.bias", channels, gain=0.05)
        self._add(f"{name}.gamma", channels, gain=0.5)

    def transformer(self, name: str, width: int, shape: TinyFishShape) -> None:
        import torch

        inner, heads = 3 * width, shape.codec_heads * shape.codec_head_dim
        for number in range(shape.codec_layers):
            layer = f"{name}.layers.{number}"
            self._add(f"{layer}.attention.wqkv.weight", 3 * heads, width, gain=width**-0.5)
            self._add(f"{layer}.attention.wo.weight", width, heads, gain=heads**-0.5)
            for norm in ("attention_norm", "ffn_norm"):
                self.tensors[f"{layer}.{norm}.weight"] = 1 + self._normal(width, gain=0.1)
            for scale in ("attention_layer_scale", "ffn_layer_scale"):
                self._add(f"{layer}.{scale}.gamma", width, gain=0.5)
            for which, outer, columns in (("1", inner, width), ("2", width, inner), ("3", inner, width)):
                self._add(f"{layer}.feed_forward.w{which}.weight", outer, columns, gain=columns**-0.5)
        self.tensors[f"{name}.norm.weight"] = 1 + self._normal(width, gain=0.1)
        count, dim = shape.codec_positions, shape.codec_head_dim
        exponents = torch.arange(0, dim, 2).float() / dim
        angles = torch.outer(torch.arange(count).float(), 1.0 / 10_000**exponents)
        table = torch.stack((angles.cos(), angles.sin()), dim=-1)
        self.tensors[f"{name}.freqs_cis"] = table.to(torch.bfloat16)
        self.tensors[f"{name}.causal_mask"] = torch.ones(count, count, dtype=torch.bool).tril()

    def codebook(self, name: str, size: int, width: int, dim: int = 8) -> None:
        self._add(f"{name}.codebook.weight", size, dim)
        for part, outer, inner in (("in_proj", dim, width), ("out_proj", width, dim)):
            self.tensors[f"{name}.{part}.weight_g"] = 1 + self._normal(outer, 1, 1, gain=0.1)
            self._add(f"{name}.{part}.weight_v", outer, inner, 1)
            self._add(f"{name}.{part}.bias", outer, gain=0.05)

    def _add(self, name: str, *shape: int, gain: float = 1.0) -> None:
        self.tensors[name] = self._normal(*shape, gain=gain)


def _write_tokenizer(directory: Path, shape: TinyFishShape) -> None:
    """One token a printable character, and the special ones at their places."""
    special = _special_tokens(shape)
    added = {token_id: {**TOKEN, "content": token} for token, token_id in special.items()}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": token_id, **token} for token_id, token in added.items()],
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": ""},
            "behavior": "Isolated",
            "invert": False,
        },
        "model": {
            "type": "WordLevel",
            "vocab": {"\n": 0} | {chr(32 + i): 1 + i for i in range(95)} | special,
            "unk_token": " ",
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
