"""The codec of Higgs Audio v2: recordings to frames of codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.codecs.dac import CenteredConv, DacEncoder
from sglang_omni.models.codecs.higgs_tokenizer import HiggsCodecConfig, load_codebooks
from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.codecs.resample import resample

_SEMANTIC = "semantic_model."
# Zeros on both sides of what HuBERT hears, at its rate.
_PADDING = 160


class HiggsEncoder:
    """An ``Encoder`` from recordings to codes (frames, groups) int64 on the host.

    Raises:
        FileNotFoundError, ValueError: A tensor is missing, misshapen or unknown.
    """

    def __init__(self, config: HiggsCodecConfig, reader: Checkpoint, hubert: Any) -> None:
        """
        Args:
            hubert: transformers' model of the semantic part, in eval mode.
        """
        self._config = config
        self._hubert = hubert
        self._device, self._dtype = hubert.device, hubert.dtype
        self._semantic = _SemanticEncoder(config, reader)
        self._acoustic = DacEncoder(
            reader,
            "acoustic_encoder.",
            width=int(config.acoustic["encoder_hidden_size"]),
            ratios=config.acoustic["downsampling_ratios"],
            hidden_size=config.acoustic_size,
        )
        size = config.acoustic_size + config.semantic_size
        self._mixing = reader.take("fc.weight", (size, size)), reader.take("fc.bias", (size,))
        self._codebooks = load_codebooks(reader, config)
        self._hears_at = int(config.fields["semantic_sample_rate"])
        hop = config.hop_length * self._hears_at // config.sample_rate
        self._semantic_step = max(1, hop // int(config.fields["downsample_factor"]))

    @classmethod
    def load(cls, path: Path, dtype: torch.dtype, device: str) -> HiggsEncoder:
        """The encoder of a directory; errors as for the class."""
        config = HiggsCodecConfig.from_dir(path)
        return cls(config, Checkpoint(path, dtype, device=device), _hubert(path, config, dtype, device))

    def info(self, item: VoiceRecording) -> ItemInfo:
        # Recordings of different lengths are not computed together: padding would be heard as silence.
        return ItemInfo(item["key"], len(item["samples"]), len(item["samples"]))

    @torch.inference_mode()
    def encode(self, items: Sequence[VoiceRecording]) -> list[ItemOutput]:
        waves = torch.stack([item["samples"] for item in items])
        rows = self._rows(to_device(waves, self._device).to(self._dtype))
        codes = []
        for book in self._codebooks:
            chosen = book.nearest(rows)
            rows = rows - F.embedding(chosen, book.rows)
            codes.append(chosen)
        return [(each.cpu(),) for each in torch.stack(codes, dim=-1)]

    def _rows(self, waves: Tensor) -> Tensor:
        """Rows (n, frames, acoustic and semantic channels) of waves (n, samples)."""
        semantic = self._semantic(self._semantic_input(waves))
        # As in the reference: the number of frames is that of the semantic part.
        if self._acoustic.frames(waves.shape[-1]) != semantic.shape[-1]:
            half = self._config.hop_length // 2
            waves = F.pad(waves, (half, half))
        rows = torch.cat((self._acoustic(waves.unsqueeze(1)), semantic), dim=1)
        return F.linear(rows.transpose(1, 2), *self._mixing)

    def _semantic_input(self, waves: Tensor) -> Tensor:
        """The mean of all of HuBERT's layers, (n, channels, frames)."""
        heard = F.pad(resample(waves, self._config.sample_rate, self._hears_at), (_PADDING, _PADDING))
        layers = self._hubert(heard, output_hidden_states=True).hidden_states
        return torch.stack(layers).mean(dim=0)[:, :: self._semantic_step].transpose(1, 2)


class _SemanticUnit(NamedTuple):
    wide: CenteredConv
    narrow: CenteredConv

    def __call__(self, rows: Tensor) -> Tensor:
        return rows + self.narrow(F.elu(self.wide(F.elu(rows))))


class _SemanticEncoder:
    """Convolutions over HuBERT's rows, (n, channels, steps) to the same."""

    def __init__(self, config: HiggsCodecConfig, reader: Checkpoint) -> None:
        fields, size = config.fields, config.semantic_size

        def conv(name: str, out: int, into: int, kernel: int, *, bias: bool, **how: int) -> CenteredConv:
            weight = reader.take(f"encoder_semantic.{name}.weight", (out, into, kernel))
            return CenteredConv(
                weight, reader.take(f"encoder_semantic.{name}.bias", (out,)) if bias else None, **how
            )

        kernel, wide = int(fields["kernel_size"]), int(fields["unit_kernel_size"])
        self._layers: list[CenteredConv | _SemanticUnit] = [
            conv("conv", size, size, kernel, bias=False, padding=kernel // 2)
        ]
        channels = size
        for index, (ratio, stride) in enumerate(
            zip(fields["channel_ratios"], fields["strides"], strict=True)
        ):
            name = f"conv_blocks.{index}"
            for unit, dilation in enumerate(fields["block_dilations"]):
                padding = (wide - 1) // 2 * dilation
                first = conv(
                    f"{name}.res_units.{unit}.conv1",
                    channels,
                    channels,
                    wide,
                    bias=False,
                    dilation=dilation,
                    padding=padding,
                )
                second = conv(f"{name}.res_units.{unit}.conv2", channels, channels, 1, bias=False)
                self._layers.append(_SemanticUnit(first, second))
            out, reach = int(size * ratio), 3 if stride == 1 else 2 * stride
            self._layers.append(
                conv(f"{name}.conv", out, channels, reach, bias=True, stride=stride, padding=(reach - 1) // 2)
            )
            channels = out

    def __call__(self, rows: Tensor) -> Tensor:
        for layer in self._layers:
            rows = layer(rows)
        return rows


def _hubert(path: Path, config: HiggsCodecConfig, dtype: torch.dtype, device: str) -> Any:
    from transformers import HubertConfig, HubertModel

    weights = Checkpoint(path, None, _SEMANTIC)
    # Only training masks what is heard.
    names = [name for name in weights.unread if not name.endswith(".masked_spec_embed")]
    tensors = {name.removeprefix(_SEMANTIC): weights.take_stored(name) for name in names}
    model, report = HubertModel.from_pretrained(
        None,
        config=HubertConfig(**{**config.semantic, "mask_time_prob": 0.0, "mask_feature_prob": 0.0}),
        state_dict=tensors,
        dtype=dtype,
        output_loading_info=True,
    )
    wrong = sorted(
        str(name) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in report[kind]
    )
    if wrong:
        raise ValueError(f"the HuBERT of {path} does not have the tensors of its config.json: {wrong[:5]}")
    return model.to(device).eval()
