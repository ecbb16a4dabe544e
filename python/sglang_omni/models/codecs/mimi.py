"""The codec Mimi: sound to frames of codes, and frames of codes to sound, whole or as a stream of any pieces.

transformers' module holds the weights. It decodes whole sequences; its own cache covers the transformer but
not the convolutions, so that pieces decoded with it have seams. The streams here keep what each convolution
needs of earlier frames too, and several are decoded at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.codecs.streamed import StreamedDecoder, StreamMemory


class Mimi(StreamedDecoder):
    """A ``BatchingVocoder`` of codes (1, groups, frames) int64, with ``total_upsample`` samples a frame.

    Args:
        module: transformers' ``MimiModel``, in eval mode.

    Raises:
        ValueError: The codec has a feature that a stream cannot have, or that is not supported.
    """

    def __init__(self, module: Any) -> None:
        config = module.config
        if not config.use_causal_conv or config.trim_right_ratio != 1.0 or config.pad_mode != "constant":
            raise ValueError(
                "this codec's convolutions see later samples, or are not padded with zeros: use_causal_conv, "
                "trim_right_ratio 1 and pad_mode 'constant' are supported"
            )
        self.module = module
        self.sample_rate = int(config.sampling_rate)
        self.total_upsample = round(config.sampling_rate / config.frame_rate)
        self.num_groups = int(config.num_quantizers)
        frame = torch.zeros(1, self.num_groups, 1, dtype=torch.long, device=next(module.parameters()).device)
        super().__init__("the codec", frame, window=int(config.sliding_window) - 1)

    @property
    def dtype(self) -> torch.dtype:
        return cast(torch.dtype, next(self.module.parameters()).dtype)

    def __call__(self, codes: Tensor) -> Tensor:
        """The waveform (1, 1, samples) of all codes at once, by transformers."""
        return cast(Tensor, self.module.decode(to_device(codes, self._device)).audio_values)

    def run(self, codes: Tensor, seen: Tensor, memory: StreamMemory) -> Tensor:
        """Samples (n, 1, samples) of codes (n, groups, frames), after ``seen`` (n, 1) frames."""
        module = self.module
        wave = module.quantizer.decode(codes)
        if module.upsample is not None:
            wave = _convolve_transposed(module.upsample.conv, wave, memory)
        hidden = self._transform(wave.transpose(1, 2), seen * (wave.shape[-1] // codes.shape[-1]), memory)
        wave = hidden.transpose(1, 2)
        for layer in module.decoder.layers:
            wave = _apply(layer, wave, memory)
        return wave

    def _transform(self, hidden: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        module, window, device = self.module.decoder_transformer, self._window, hidden.device
        steps = torch.arange(hidden.shape[1], device=device)
        # A step attends to itself and to earlier ones within the window, not to zeros before the first.
        key, query = torch.arange(window + len(steps), device=device), steps.unsqueeze(-1)
        mask = (key >= query) & (key <= query + window) & (key >= window - positions).unsqueeze(1)
        turns = module.rotary_emb(hidden, positions + steps)
        for layer in module.layers:
            (hidden,) = layer(
                hidden, attention_mask=mask.unsqueeze(1), past_key_values=memory, position_embeddings=turns
            )
        return hidden


def _apply(layer: Any, wave: Tensor, memory: StreamMemory) -> Tensor:
    if hasattr(layer, "block"):
        inner = wave
        for part in layer.block:
            inner = _apply(part, inner, memory)
        return _apply(layer.shortcut, wave, memory) + inner
    conv = getattr(layer, "conv", None)
    if isinstance(conv, nn.ConvTranspose1d):
        return _convolve_transposed(conv, wave, memory)
    if isinstance(conv, nn.Conv1d):
        if reach := (conv.kernel_size[0] - 1) * conv.dilation[0]:
            wave = memory.extend(wave, reach)
        return F.conv1d(wave, conv.weight, conv.bias, dilation=conv.dilation, groups=conv.groups)
    return cast(Tensor, layer(wave))


def _convolve_transposed(conv: nn.ConvTranspose1d, wave: Tensor, memory: StreamMemory) -> Tensor:
    # A sample depends on the steps whose kernels reach it: zeros before the first add nothing.
    stride, count = conv.stride[0], wave.shape[-1]
    if reach := math.ceil(conv.kernel_size[0] / stride) - 1:
        wave = memory.extend(wave, reach)
    return conv(wave).narrow(-1, reach * stride, count * stride)


class VoiceRecording(TypedDict):
    """Sound to encode.

    Attributes:
        key: Hash of its samples.
        samples: float32 (n,), at the codec's rate.
    """

    key: bytes
    samples: Tensor


class MimiEncoder:
    """An ``Encoder`` from recordings to codes (frames, groups) int64 on the host. A last part frame counts.

    Args:
        module: transformers' ``MimiModel``, in eval mode.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        parameter = next(module.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype

    def info(self, item: VoiceRecording) -> ItemInfo:
        # Recordings of different lengths are not computed together: padding would be heard as silence.
        return ItemInfo(item["key"], len(item["samples"]), len(item["samples"]))

    @torch.inference_mode()
    def encode(self, items: Sequence[VoiceRecording]) -> list[ItemOutput]:
        samples = torch.stack([item["samples"] for item in items]).unsqueeze(1)
        codes = self._module.encode(to_device(samples, self._device).to(self._dtype)).audio_codes
        return [(each.t().cpu().contiguous(),) for each in codes]


def load_mimi(
    path: str | Path, prefix: str, fields: Mapping[str, Any], dtype: torch.dtype, device: str
) -> Any:
    """transformers' ``MimiModel`` with the weights of a checkpoint.

    Args:
        path: The checkpoint's directory.
        prefix: Of the names of the codec's tensors.
        fields: The codec's part of ``config.json``.

    Raises:
        FileNotFoundError, ValueError: A tensor is missing, misshapen or unknown.
    """
    from transformers import MimiConfig, MimiModel

    # The streams' masks need this attention, whatever a checkpoint names.
    config = MimiConfig(**{**fields, "attn_implementation": "sdpa"})
    return load_component(path, prefix, partial(MimiModel, config), dtype, device)
