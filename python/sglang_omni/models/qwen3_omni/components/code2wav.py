"""The codec's decoder, from frames of codes to a waveform: whole, or as a stream of any pieces."""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.codecs.snake import Snake
from sglang_omni.models.codecs.streamed import StreamedDecoder, StreamMemory
from sglang_omni.models.codecs.window_transformer import window_mask
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.reference import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavConfig,
    Qwen3OmniMoeCode2WavDecoderResidualUnit,
    Qwen3OmniMoeConvNeXtBlock,
)


class Code2Wav(StreamedDecoder):
    """transformers' module, which decodes whole sequences, and streams computed with its weights.

    Codes are (1, groups, frames) int64. A waveform is (1, 1, samples) in [-1, 1] and a few hundred samples
    shorter than ``frames * total_upsample``, because the end of the last frame depends on the next one.
    """

    def __init__(self, module: Qwen3OmniMoeCode2Wav) -> None:
        self.module = module
        self.total_upsample = int(module.total_upsample)
        with torch.no_grad():
            # Found by a field, because the class has another name in each version of transformers.
            self._snakes = {
                part: _snake(part) for part in module.modules() if hasattr(part, "no_div_by_zero")
            }
        self._before = module.config.sliding_window - 1
        # The argument's name of transformers 5.24 and later, and that of those before.
        names = inspect.signature(module.pre_transformer.forward).parameters
        self._memory_name = "cache" if "cache" in names else "past_key_values"
        super().__init__(
            "the codec", torch.zeros_like(module.code_offset.view(1, -1, 1)), window=self._before
        )

    def __call__(self, codes: Tensor) -> Tensor:
        waveform: Tensor = self.module(codes)
        return waveform

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.module.dtype
        return dtype

    def run(self, inputs: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        """Samples (n, 1, samples) of codes (n, groups, frames)."""
        module = self.module
        embeds = module.code_embedding(inputs + module.code_offset).mean(1)
        wave = self._transform(embeds, positions, memory).transpose(1, 2)
        for transposed, convnext in module.upsample:
            wave = _convnext(convnext, _transposed(transposed, wave, memory), memory)
        first, *blocks, snake, last = module.decoder
        wave = _convolve(first, wave, memory)
        for block in blocks:
            before, transposed, *units = block.block
            wave = _transposed(transposed, self._snakes[before](wave), memory)
            for unit in units:
                wave = self._residual(unit, wave, memory)
        return _convolve(last, self._snakes[snake](wave), memory).clamp_(min=-1, max=1)

    def _transform(self, embeds: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        frames = torch.arange(embeds.shape[1], device=embeds.device)
        hidden: Tensor = self.module.pre_transformer(
            inputs_embeds=embeds,
            attention_mask={"sliding_attention": window_mask(positions, frames, self._before).unsqueeze(1)},
            position_ids=positions + frames,
            use_cache=True,
            **{self._memory_name: memory},
        ).last_hidden_state
        return hidden

    def _residual(
        self, part: Qwen3OmniMoeCode2WavDecoderResidualUnit, wave: Tensor, memory: StreamMemory
    ) -> Tensor:
        hidden = _convolve(part.conv1, self._snakes[part.act1](wave), memory)
        return _convolve(part.conv2, self._snakes[part.act2](hidden), memory).add_(wave)


def _snake(part: Any) -> Snake:
    frequency = part.alpha.exp().unsqueeze(-1)
    return Snake(frequency, (1 / (part.beta.exp() + part.no_div_by_zero)).unsqueeze(-1))


def _convolve(part: Qwen3OmniMoeCausalConvNet, wave: Tensor, memory: StreamMemory) -> Tensor:
    conv = part.conv
    if part.padding:
        wave = memory.extend(wave, part.padding)
    return F.conv1d(wave, conv.weight, conv.bias, dilation=conv.dilation, groups=conv.groups)


def _transposed(part: Qwen3OmniMoeCausalTransConvNet, wave: Tensor, memory: StreamMemory) -> Tensor:
    cut = part.left_pad
    if not cut:
        return cast(Tensor, part(wave))
    # The module trims one stride from each end; prepending one earlier step compensates.
    wave = part(memory.extend(wave, 1))
    return wave[..., cut:] if memory.is_first else wave


def _convnext(part: Qwen3OmniMoeConvNeXtBlock, wave: Tensor, memory: StreamMemory) -> Tensor:
    hidden = part.norm(_convolve(part.dwconv, wave, memory).transpose(1, 2))
    hidden = part.pwconv2(part.act(part.pwconv1(hidden)))
    return torch.addcmul(wave, hidden.transpose(1, 2), part.gamma.unsqueeze(-1))


def load_code2wav(checkpoint: Qwen3OmniCheckpoint, dtype: torch.dtype, device: str) -> Code2Wav:
    """
    Raises:
        ValueError: The component is missing or incomplete.
    """
    checkpoint.require_talker()
    # The streams' masks need this attention, whatever a checkpoint names.
    settings = {**checkpoint.config["code2wav_config"], "attn_implementation": "sdpa"}
    config = Qwen3OmniMoeCode2WavConfig(**settings)
    module = load_component(checkpoint.path, "code2wav.", lambda: Qwen3OmniMoeCode2Wav(config), dtype, device)
    return Code2Wav(module)
