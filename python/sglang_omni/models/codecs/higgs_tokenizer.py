"""The codec of Higgs Audio v2: frames of codes to sound.

Residual codes stand for rows that have both an acoustic and a semantic part; a DAC makes the sound of them.
The reference is transformers' ``HiggsAudioV2TokenizerModel``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.codecs.dac import DacDecoder
from sglang_omni.preprocessing.text import read_json

MODEL_TYPE = "higgs_audio_v2_tokenizer"


@dataclass(frozen=True)
class HiggsCodecConfig:
    """The codec's ``config.json``.

    Attributes:
        acoustic, semantic: Those of its DAC and of its HuBERT.
        fields: All of it.
    """

    acoustic: dict[str, Any]
    semantic: dict[str, Any]
    sample_rate: int
    codebook_size: int
    codebook_dim: int
    fields: dict[str, Any]

    @classmethod
    def from_dir(cls, path: Path) -> HiggsCodecConfig:
        """
        Raises:
            ValueError: It is no such codec.
        """
        fields = read_json(path / "config.json")
        if fields.get("model_type") != MODEL_TYPE:
            raise ValueError(
                f"{path} is no codec of Higgs Audio v2 in transformers' layout: model_type is "
                f"{fields.get('model_type')!r}"
            )
        acoustic, semantic = fields["acoustic_model_config"], fields["semantic_model_config"]
        return cls(
            acoustic=acoustic,
            semantic=semantic,
            sample_rate=int(fields["sample_rate"]),
            codebook_size=int(fields["codebook_size"]),
            codebook_dim=int(fields["codebook_dim"] or acoustic["hidden_size"] + semantic["hidden_size"]),
            fields=fields,
        )

    @property
    def hop_length(self) -> int:
        """Samples of a frame."""
        return math.prod(self.acoustic["downsampling_ratios"])

    @property
    def acoustic_size(self) -> int:
        """Channels of a frame's acoustic part."""
        return int(self.acoustic["hidden_size"])

    @property
    def semantic_size(self) -> int:
        """Channels of a frame's semantic part."""
        return int(self.semantic["hidden_size"])

    @property
    def num_groups(self) -> int:
        """The codes of a frame, at the highest bandwidth (kbit/s)."""
        bits = math.ceil(math.log2(self.codebook_size)) * math.ceil(self.sample_rate / self.hop_length)
        return int(1000 * self.fields["target_bandwidths"][-1] // bits)


class EuclideanCodebook(NamedTuple):
    """The codes of one group.

    Attributes:
        codes: (codebook_size, codebook_dim).
        into: Weight and bias of the projection from rows to codes.
        rows: (codebook_size, hidden_size), what each code stands for.
    """

    codes: Tensor
    into: tuple[Tensor, Tensor]
    rows: Tensor

    def nearest(self, rows: Tensor) -> Tensor:
        """The code (..., ) int64 nearest to each row (..., hidden_size), by Euclidean distance."""
        projected = linear(rows, *self.into)
        # The square of the row itself is the same for all codes.
        return (2 * projected @ self.codes.t() - self.codes.square().sum(dim=1)).argmax(dim=-1)


def load_codebooks(reader: Checkpoint, config: HiggsCodecConfig) -> list[EuclideanCodebook]:
    """The codebooks of all groups."""
    hidden, size, dim = config.acoustic_size + config.semantic_size, config.codebook_size, config.codebook_dim
    books = []
    for group in range(config.num_groups):
        name = f"quantizer.quantizers.{group}"
        codes = reader.take(f"{name}.codebook.embed", (size, dim))
        into, out = (
            (
                reader.take(f"{name}.project_{way}.weight", shape),
                reader.take(f"{name}.project_{way}.bias", shape[:1]),
            )
            for way, shape in (("in", (dim, hidden)), ("out", (hidden, dim)))
        )
        books.append(EuclideanCodebook(codes, into, linear(codes, *out)))
    return books


class HiggsDecoder:
    """A ``Vocoder``: from codes (n, groups, frames) int64 to samples (n, 1, frames * total_upsample).

    Raises:
        FileNotFoundError, ValueError: A tensor is missing or misshapen.
    """

    def __init__(self, config: HiggsCodecConfig, reader: Checkpoint) -> None:
        acoustic, size = config.acoustic, config.acoustic_size
        self.sample_rate, self.total_upsample = config.sample_rate, config.hop_length
        self.num_groups = config.num_groups
        weight = reader.take("fc2.weight", (size, size + config.semantic_size))
        self._bias = reader.take("fc2.bias", (size,))
        # Only the acoustic part of what codes stand for is heard.
        books = load_codebooks(reader, config)
        self._rows = torch.cat([linear(book.rows.float(), weight.float()) for book in books]).to(weight.dtype)
        self._last = config.codebook_size - 1
        offsets = torch.arange(config.num_groups) * config.codebook_size
        self._offsets = offsets.unsqueeze(-1).to(weight.device)
        self._dac = DacDecoder(
            reader,
            "acoustic_decoder.",
            width=int(acoustic["decoder_hidden_size"]),
            ratios=acoustic["upsampling_ratios"],
            hidden_size=size,
        )
        # Frames on each side that a sample depends on.
        self.context_frames = self._dac.context_frames

    @classmethod
    def load(cls, path: Path, dtype: torch.dtype, device: str) -> HiggsDecoder:
        """The decoder of a directory; errors as for the class."""
        config = HiggsCodecConfig.from_dir(path)
        return cls(config, Checkpoint(path, dtype, device=device))

    def __call__(self, codes: Tensor) -> Tensor:
        rows = embedding(codes.clamp(max=self._last) + self._offsets, self._rows).sum(dim=1)
        return self._dac((rows + self._bias).transpose(1, 2))
