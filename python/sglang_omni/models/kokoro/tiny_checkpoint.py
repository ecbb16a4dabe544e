"""Writing of tiny random checkpoints in Kokoro's published layout, for tests and trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import write_json
from sglang_omni.published import PublishedModel, published_model, shrunk
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    from torch import Generator, Tensor

_VOICES = (
    *("af_heart", "am_adam", "bf_emma", "ef_dora", "ff_siwis"),
    *("hf_alpha", "if_sara", "jf_alpha", "pf_dora", "zf_xiaobei"),
)
# The pitch around which a voice speaks, in Hz.
_PITCH, _SPREAD = 150.0, 60.0


@dataclass(frozen=True)
class TinyKokoroShape:
    """The sizes of a checkpoint."""

    hidden_dim: int = option(32, "channels of phonemes' features")
    layers: int = option(2, "layers of the encoders of text and durations")
    max_dur: int = option(6, "longest duration of a phoneme, in steps of 25 ms")
    plbert_hidden: int = option(24, "hidden size of the encoder of phonemes")
    plbert_heads: int = option(2, "its attention heads")
    plbert_layers: int = option(2, "how often its layer is applied")
    inner_channels: int = option(24, "of the decoder before the vocoder, which no config names")
    beside_channels: int = option(8, "of what that is given beside each block")
    channels: int = option(32, "of the vocoder's first step; each step halves them")
    rates: tuple[int, ...] = option((10, 6), "of the vocoder's steps; the product is a 5th of 300 samples")
    kernels: tuple[int, ...] = option((3, 7), "of its residual blocks")


SHAPE = TinyKokoroShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a random checkpoint with all the files of a published one, and a voice of each language.

    Args:
        path: Created if it does not exist; files of the same names are replaced.
        seed: Of the weights.
        shape: Fields of ``TinyKokoroShape``.

    Returns:
        ``path``.

    Raises:
        TypeError: There is no such field.
    """
    import torch

    from sglang_omni.models.kokoro.components.model import KokoroModel
    from sglang_omni.models.kokoro.components.vocoder import InnerChannels

    sizes = TinyKokoroShape(**shape)
    published = published_model("kokoro")
    directory = Path(path)
    (directory / "voices").mkdir(parents=True, exist_ok=True)
    config = config_of(sizes, published)
    write_json(directory / "config.json", config)
    generator = torch.Generator().manual_seed(seed)
    inner = InnerChannels(sizes.inner_channels, sizes.beside_channels)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in KokoroModel(config, inner).state_dict().items():
        part, _, rest = name.partition(".")
        if not rest.endswith((".norm.weight", ".norm.bias")):
            parts.setdefault(part, {}).update(stored(f"module.{rest}", _drawn(name, tensor, generator)))
    weights = next(name for name in published.listing if name.endswith(".pth"))
    torch.save(parts, directory / weights)
    rows, style = config["plbert"]["max_position_embeddings"] - 2, config["style_dim"]
    for voice in _VOICES:
        own = 0.3 * torch.randn(1, 1, 2 * style, generator=generator)
        drift = 0.002 * torch.randn(rows, 1, 2 * style, generator=generator)
        torch.save(own + drift.cumsum(0), directory / "voices" / f"{voice}.pt")
    mark_random(directory)
    return directory


def config_of(sizes: TinyKokoroShape, published: PublishedModel) -> dict[str, Any]:
    """``config.json``: the published one with these sizes."""
    istftnet = {
        "upsample_kernel_sizes": [2 * rate for rate in sizes.rates],
        "upsample_rates": list(sizes.rates),
        "resblock_dilation_sizes": [[1, 3, 5]] * len(sizes.kernels),
        "resblock_kernel_sizes": list(sizes.kernels),
        "upsample_initial_channel": sizes.channels,
    }
    plbert = {
        "hidden_size": sizes.plbert_hidden,
        "num_attention_heads": sizes.plbert_heads,
        "intermediate_size": 2 * sizes.plbert_hidden,
        "num_hidden_layers": sizes.plbert_layers,
    }
    changes = {
        "istftnet": istftnet,
        "plbert": plbert,
        "hidden_dim": sizes.hidden_dim,
        "n_layer": sizes.layers,
        "max_dur": sizes.max_dur,
    }
    return shrunk(published.config(), changes)


def _drawn(name: str, like: Tensor, generator: Generator) -> Tensor:
    """Weights of which speech is voiced in places, and differs with its phonemes and its voice."""
    import torch

    drawn = torch.randn(like.shape, generator=generator)
    match name.split(".")[-2:]:
        case [_, "gamma"] | ["LayerNorm" | "full_layer_layer_norm", "weight"]:
            return 1 + 0.1 * drawn
        case [("alpha1" | "alpha2"), _]:
            return 1 + 0.2 * drawn.abs()
        case ["F0_proj", "bias"]:
            return torch.full_like(drawn, _PITCH)
        case ["F0_proj", "weight"]:
            return _SPREAD * drawn / like[0].numel() ** 0.5
        case ["F0_conv", "weight"]:
            # To about 1.
            return drawn / _PITCH
        case ["linear_layer", "weight"]:
            return 4 * drawn / like.shape[1] ** 0.5
        case ["conv_post", "bias"]:
            return 0.3 * drawn - 2
        case ["conv_post", "weight"]:
            return 0.3 * drawn / like[0].numel() ** 0.5
    if like.dim() == 1:
        return 0.1 * drawn
    if "embedding" in name:
        return drawn
    fan_in = like.shape[0] if ".ups." in name else like[0].numel()
    # What is added to a sum must not make it grow from block to block.
    gain = 0.3 if ".convs2." in name else 1.2
    return gain * drawn / fan_in**0.5


def stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor under its published name; that of a normed convolution as its length and direction."""
    if not name.endswith(".weight") or tensor.dim() != 3 or _is_plain(name):
        return {name: tensor}
    length = tensor.flatten(1).norm(dim=1)[:, None, None]
    # A row of zeros has no direction of its own.
    return {f"{name}_g": length, f"{name}_v": 2 * tensor + (length == 0)}


def _is_plain(name: str) -> bool:
    return any(part in name for part in ("noise_convs", "F0_proj", "N_proj"))
