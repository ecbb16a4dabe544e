"""The codec's decoder: frames of codes -> a waveform."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavDecoderResidualUnit,
    Qwen3OmniMoeConvNeXtBlock,
)

from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint


class Code2Wav:
    """transformers' own module, which decodes whole sequences, and its weights as a stream.

    Codes are (1, groups, frames) int64. A waveform is (1, 1, samples) in +-1, and a few hundred samples
    shorter than ``frames * total_upsample``: the end of the last frame needs the next one.
    """

    def __init__(self, module: Qwen3OmniMoeCode2Wav) -> None:
        self.module = module
        self.total_upsample = int(module.total_upsample)
        # By a field: the class has another name in each version of transformers.
        self.snakes = {part: Snake(part) for part in module.modules() if hasattr(part, "no_div_by_zero")}

    def __call__(self, codes: Tensor) -> Tensor:
        waveform: Tensor = self.module(codes)
        return waveform

    def open_stream(self) -> Code2WavStream:
        """A waveform that grows as codes come: together the same as decoding them all at once."""
        return Code2WavStream(self)


class Snake:
    """``x + sin(x * frequency)^2 * height`` in three passes; the reference's takes eight."""

    def __init__(self, part: nn.Module) -> None:
        with torch.no_grad():
            self._frequency = part.alpha.exp().unsqueeze(-1)
            self._height = (1 / (part.beta.exp() + part.no_div_by_zero)).unsqueeze(-1)

    def __call__(self, wave: Tensor) -> Tensor:
        angle = wave * self._frequency
        if angle.device.type == "cpu" and angle.dtype == torch.float32:
            # NumPy's takes a third of the time of torch's, and sines are what the decoder does most.
            array = angle.numpy()
            np.sin(array, out=array)
        else:
            angle.sin_()
        return torch.addcmul(wave, angle.square_(), self._height)


class Code2WavStream:
    """Decodes each frame once, whatever came with it.

    The transformer keeps its keys and values, each convolution the end of what it saw.
    """

    def __init__(self, vocoder: Code2Wav) -> None:
        self._module = vocoder.module
        self._snakes = vocoder.snakes
        self._cache = DynamicCache(config=vocoder.module.config)
        self._before: dict[nn.Module, Tensor] = {}

    def decode(self, codes: Tensor) -> Tensor:
        """The samples (1, 1, n) that these frames complete."""
        module = self._module
        embeds = module.code_embedding(codes + module.code_offset).mean(1)
        hidden = module.pre_transformer(
            inputs_embeds=embeds, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        wave = hidden.permute(0, 2, 1)
        for transposed, convnext in module.upsample:
            wave = self._convnext(convnext, self._transposed(transposed, wave))
        first, *blocks, snake, last = module.decoder
        wave = self._convolve(first, wave)
        for block in blocks:
            before, transposed, *units = block.block
            wave = self._transposed(transposed, self._snakes[before](wave))
            for unit in units:
                wave = self._residual(unit, wave)
        return self._convolve(last, self._snakes[snake](wave)).clamp_(min=-1, max=1)

    def _convolve(self, part: Qwen3OmniMoeCausalConvNet, now: Tensor) -> Tensor:
        conv, reach = part.conv, part.padding
        if reach:
            before = self._before.get(part)
            # Before the first frame there was silence.
            now = F.pad(now, (reach, 0)) if before is None else torch.cat((before, now), dim=-1)
            self._before[part] = now[..., -reach:].clone()  # not a view, which would keep all of it
        return F.conv1d(now, conv.weight, conv.bias, dilation=conv.dilation, groups=conv.groups)

    def _transposed(self, part: Qwen3OmniMoeCausalTransConvNet, now: Tensor) -> Tensor:
        cut = part.left_pad
        if cut:
            # A stride is cut off both ends of what it makes: one step of before makes up for that.
            before = self._before.get(part)
            now = now if before is None else torch.cat((before, now), dim=-1)
            self._before[part] = now[..., -1:].clone()
        wave: Tensor = part(now)
        return wave

    def _convnext(self, part: Qwen3OmniMoeConvNeXtBlock, wave: Tensor) -> Tensor:
        hidden = part.norm(self._convolve(part.dwconv, wave).transpose(1, 2))
        hidden = part.pwconv2(part.act(part.pwconv1(hidden)))
        return torch.addcmul(wave, hidden.transpose(1, 2), part.gamma.unsqueeze(-1))

    def _residual(self, part: Qwen3OmniMoeCode2WavDecoderResidualUnit, wave: Tensor) -> Tensor:
        hidden = self._convolve(part.conv1, self._snakes[part.act1](wave))
        return self._convolve(part.conv2, self._snakes[part.act2](hidden)).add_(wave)


def load_code2wav(checkpoint: Qwen3OmniCheckpoint, dtype: torch.dtype, device: str) -> Code2Wav:
    """
    Raises:
        ValueError: The checkpoint has no such component, or not all of it.
    """
    checkpoint.require_talker()
    config = Qwen3OmniMoeCode2WavConfig(**checkpoint.config["code2wav_config"])
    module = load_component(checkpoint.path, "code2wav.", lambda: Qwen3OmniMoeCode2Wav(config), dtype, device)
    return Code2Wav(module)
