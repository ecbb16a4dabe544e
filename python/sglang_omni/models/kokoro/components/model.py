"""Kokoro (StyleTTS 2 without its diffusion, arXiv:2306.07691): phonemes and a style to samples.

Each text is computed by itself: what others say beside it changes no sample of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from sglang_omni.models.kokoro.components.plbert import Plbert, PlbertShape
from sglang_omni.models.kokoro.components.prosody import ProsodyPredictor, TextEncoder
from sglang_omni.models.kokoro.components.vocoder import (
    InnerChannels,
    KokoroDecoder,
    VocoderDraws,
    VocoderShape,
)


class KokoroSaid(NamedTuple):
    """
    Attributes:
        samples: float32 (n,) at 24 kHz.
        durations: How long each phoneme lasts, with the two that begin and end the text, in steps of 25 ms.
    """

    samples: Tensor
    durations: list[int]


class KokoroModel(nn.Module):
    """
    Args:
        config: ``config.json``.
        inner: Sizes that it does not name.
    """

    def __init__(self, config: Mapping[str, Any], inner: InnerChannels) -> None:
        super().__init__()
        hidden, style, layers = config["hidden_dim"], config["style_dim"], config["n_layer"]
        self.style_size = int(style)
        self.vocoder = VocoderShape(**config["istftnet"])
        shape = PlbertShape(*(config["plbert"][name] for name in PlbertShape._fields))
        self.bert = Plbert(shape, config["n_token"])
        self.bert_encoder = nn.Linear(shape.hidden_size, hidden)
        self.predictor = ProsodyPredictor(style, hidden, layers, config["max_dur"])
        kernel = config["text_encoder_kernel_size"]
        self.text_encoder = TextEncoder(hidden, kernel, layers, config["n_token"])
        self.decoder = KokoroDecoder(hidden, style, self.vocoder, inner)

    @torch.inference_mode()
    def speak(self, ids: Sequence[int], style: Tensor, speed: float, generator: Generator) -> KokoroSaid:
        """
        Args:
            ids: Of the phonemes.
            style: float32 (2 * style size,): of the sound, then of the prosody.
            speed: 1.0 is the voice's own.
            generator: Draws on the CPU, in the authors' order.
        """
        device = self.bert_encoder.weight.device
        symbols = torch.tensor([[0, *ids, 0]], device=device)
        timbre, prosody = style.to(device)[None].split(self.style_size, dim=1)
        features = self.bert_encoder(self.bert(symbols)).transpose(1, 2)
        paced = self.predictor.text_encoder(features, prosody)
        durations = torch.round(self.predictor.durations(paced) / speed).clamp(min=1).long()[0]
        pitch, energy = self.predictor.curves(paced.repeat_interleave(durations, dim=1), prosody)
        sounds = self.text_encoder(symbols).repeat_interleave(durations, dim=2)
        draws = VocoderDraws.of(generator, pitch.shape[1] * self.vocoder.rate)
        samples = self.decoder(sounds, pitch, energy, timbre, draws)
        return KokoroSaid(samples, durations.tolist())
