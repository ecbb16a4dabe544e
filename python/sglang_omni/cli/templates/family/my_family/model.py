"""The model: a decoder over letters and codes of speech, which engines step, and a vocoder."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sglang_omni.engines import DecoderSpec
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.decoder import WeightNames

# The decoder's vocabulary: the bytes of the text, then the codes, then the end.
LETTERS = 256


def read_config(model_path: str) -> dict:
    """The fields of ``config.json``."""
    return json.loads((Path(model_path) / "config.json").read_text())


def decoder_spec(model_path: str) -> DecoderSpec:
    """The decoder, as engines compute it: Llama's layers under names of our own.

    Layers that are not Llama's need a model class of their own; see docs/adding-a-model.md.
    """
    fields = read_config(model_path)["decoder"]
    return DecoderSpec(
        Path(model_path),
        DecoderConfig.from_dict(fields, "llama"),
        weights=WeightNames(
            "decoder.embed.weight", "decoder.layers", "decoder.norm.weight", "decoder.head.weight"
        ),
        component="decoder.",
        suppress_token_ids=tuple(range(LETTERS)),  # it reads letters and writes codes
    )


class MyFamilyVocoder(nn.Module):
    """Codes to sound. It goes on where it stopped: its state is the code before."""

    def __init__(self, codes: int, hop: int) -> None:
        super().__init__()
        self.sound = nn.Embedding(codes, hop)
        self.tail = nn.Embedding(codes, hop)

    @torch.inference_mode()
    def forward(self, codes: Tensor, before: Tensor) -> Tensor:
        """
        Args:
            codes: int64 (n,).
            before: int64 (1,) the code before them, or (0,) at the beginning.

        Returns:
            Samples, float32 (n * hop,).
        """
        samples = self.sound(codes)
        tails = self.tail(torch.cat([before, codes[:-1]]))
        samples[len(codes) - len(tails) :] += tails
        return samples.flatten().tanh()


def load_vocoder(model_path: str) -> MyFamilyVocoder:
    fields = read_config(model_path)
    vocoder = MyFamilyVocoder(fields["codes"], fields["hop"])
    weights = load_file(Path(model_path) / "model.safetensors")
    vocoder.load_state_dict({name: weights[f"vocoder.{name}"] for name in vocoder.state_dict()})
    return vocoder.eval()
