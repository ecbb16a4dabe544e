"""A small random codec of Higgs Audio v2, with the files of a published one: for tests and trials."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny.tokenizer import write_json
from sglang_omni.published import published_codec, shrunk

if TYPE_CHECKING:
    import torch

# The published one's: 960 samples a frame, with an odd stride.
_RATIOS = (8, 5, 4, 2, 3)
_ACOUSTIC, _CODEBOOK_DIM = 8, 6
_ENCODER_WIDTH, _DECODER_WIDTH = 2, 64


def make_tokenizer(path: Path, seed: int, *, codebooks: int, codes: int, semantic_size: int) -> None:
    """Writes a checkpoint of transformers' ``HiggsAudioV2TokenizerModel``.

    Args:
        path: The directory, made if it is missing.
        codebooks: Codes of a frame.
        codes: Codes of each codebook.
        semantic_size: Hidden size of its HuBERT, a multiple of 4.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import HubertConfig, HubertModel

    path.mkdir(parents=True, exist_ok=True)
    published = published_codec("higgs_audio_v2")
    fields = _config(published.config(), codebooks, codes, semantic_size)
    # transformers changes what it is given.
    semantic = HubertConfig(**copy.deepcopy(fields["semantic_model_config"]))
    write_json(path / "config.json", fields)
    write_json(path / "preprocessor_config.json", published.config("preprocessor_config.json"))
    chance = torch.Generator().manual_seed(seed)
    tensors = {name: _values(name, shape, chance) for name, shape in _shapes(codebooks, codes, semantic_size)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hubert = HubertModel(semantic).state_dict()
    tensors |= {f"semantic_model.{name}": tensor.contiguous() for name, tensor in hubert.items()}
    _calm(path, tensors, chance, codes)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def _config(published: Mapping[str, Any], codebooks: int, codes: int, semantic_size: int) -> dict[str, Any]:
    """``config.json``: the published one with these sizes."""
    frames = math.ceil(published["sample_rate"] / math.prod(_RATIOS))
    bandwidth = codebooks * math.ceil(math.log2(codes)) * frames / 1000
    highest = published["target_bandwidths"][-1]
    return shrunk(
        published,
        {
            "target_bandwidths": [bandwidth * each / highest for each in published["target_bandwidths"]],
            "codebook_size": codes,
            "codebook_dim": _CODEBOOK_DIM,
            "acoustic_model_config": {
                "encoder_hidden_size": _ENCODER_WIDTH,
                "decoder_hidden_size": _DECODER_WIDTH,
                "hidden_size": _ACOUSTIC,
            },
            "semantic_model_config": {
                "hidden_size": semantic_size,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 24,
                "conv_dim": [6] * 7,
                "num_conv_pos_embeddings": 8,
                "num_conv_pos_embedding_groups": 2,
            },
        },
    )


def _shapes(codebooks: int, codes: int, semantic_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of all tensors but HuBERT's."""
    both = _ACOUSTIC + semantic_size
    for name, out in (("fc", both), ("fc1", semantic_size), ("fc2", _ACOUSTIC)):
        yield from _layer(name, (out, both))
    for group in range(codebooks):
        book = f"quantizer.quantizers.{group}"
        yield f"{book}.codebook.embed", (codes, _CODEBOOK_DIM)
        yield f"{book}.codebook.embed_avg", (codes, _CODEBOOK_DIM)
        yield f"{book}.codebook.cluster_size", (codes,)
        yield f"{book}.codebook.inited", (1,)
        yield from _layer(f"{book}.project_in", (_CODEBOOK_DIM, both))
        yield from _layer(f"{book}.project_out", (both, _CODEBOOK_DIM))
    width, narrow = _ENCODER_WIDTH, (semantic_size, semantic_size, 3)
    yield from _layer("acoustic_encoder.conv1", (width, 1, 7))
    for index, ratio in enumerate(_RATIOS):
        block = f"acoustic_encoder.block.{index}"
        yield from _units(block, width)
        yield f"{block}.snake1.alpha", (1, width, 1)
        yield from _layer(f"{block}.conv1", (2 * width, width, 2 * ratio))
        width *= 2
    yield "acoustic_encoder.snake1.alpha", (1, width, 1)
    yield from _layer("acoustic_encoder.conv2", (_ACOUSTIC, width, 3))
    width = _DECODER_WIDTH
    yield from _layer("acoustic_decoder.conv1", (width, _ACOUSTIC, 7))
    for index, ratio in enumerate(_RATIOS):
        block = f"acoustic_decoder.block.{index}"
        yield f"{block}.snake1.alpha", (1, width, 1)
        yield f"{block}.conv_t1.weight", (width, width // 2, 2 * ratio)
        width //= 2
        yield f"{block}.conv_t1.bias", (width,)
        yield from _units(block, width)
    yield "acoustic_decoder.snake1.alpha", (1, width, 1)
    yield from _layer("acoustic_decoder.conv2", (1, width, 7))
    yield "encoder_semantic.conv.weight", narrow
    yield "decoder_semantic.conv1.weight", narrow
    yield "decoder_semantic.conv2.weight", narrow
    for half in ("encoder_semantic", "decoder_semantic"):
        for index in range(2):
            block = f"{half}.conv_blocks.{index}"
            for unit in range(2):
                yield f"{block}.res_units.{unit}.conv1.weight", narrow
                yield f"{block}.res_units.{unit}.conv2.weight", (*narrow[:2], 1)
            yield from _layer(f"{block}.conv", narrow)


def _layer(name: str, weight: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", weight
    yield f"{name}.bias", weight[:1]


def _units(block: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for unit in (f"{block}.res_unit{number}" for number in (1, 2, 3)):
        yield f"{unit}.snake1.alpha", (1, width, 1)
        yield from _layer(f"{unit}.conv1", (width, width, 7))
        yield f"{unit}.snake2.alpha", (1, width, 1)
        yield from _layer(f"{unit}.conv2", (width, width, 1))


def _values(name: str, shape: tuple[int, ...], chance: torch.Generator) -> torch.Tensor:
    import torch

    numbers = torch.randn(shape, generator=chance)
    if name.endswith("alpha"):
        return 1 + 0.1 * numbers
    if name.endswith(("inited", "cluster_size")):
        return torch.ones(shape)
    if name.endswith(("embed", "embed_avg")):
        return numbers
    if name.endswith("bias"):
        return 0.1 * numbers
    # Residual units add to what they get: they must not make it grow from one to the next.
    scale = 0.3 if ".conv2." in name else 1.0
    return scale * numbers * numbers[0].numel() ** -0.5


def _calm(path: Path, tensors: Mapping[str, Any], chance: torch.Generator, codes: int) -> None:
    """Scales the last layer for sound within [-1, 1]."""
    import torch
    from safetensors.torch import save_file

    from sglang_omni.models.codecs.higgs_tokenizer import HiggsDecoder

    save_file(dict(tensors), path / "model.safetensors", {"format": "pt"})
    decoder = HiggsDecoder.load(path, torch.float32, "cpu")
    with torch.inference_mode():
        wave = decoder(torch.randint(codes, (4, decoder.num_groups, 30), generator=chance))
    for part in ("weight", "bias"):
        tensors[f"acoustic_decoder.conv2.{part}"].mul_(0.6 / wave.abs().max())
