"""The codec's decoder: frames of codes -> a waveform."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
)

from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint


class Code2Wav:
    """transformers' own module, which decodes whole sequences, and its parts as a stream.

    Codes are (1, groups, frames) int64. A waveform is (1, 1, samples) in +-1, and a few hundred samples
    shorter than ``frames * total_upsample``: the end of the last frame needs the next one.
    """

    def __init__(self, module: Qwen3OmniMoeCode2Wav) -> None:
        self.module = module
        self.total_upsample = int(module.total_upsample)
        # The stream that is being decoded; None while whole sequences are.
        self.stream: Code2WavStream | None = None
        for part in module.modules():
            if isinstance(part, Qwen3OmniMoeCausalConvNet):
                part.register_forward_pre_hook(self._go_on)
                part.register_forward_hook(self._without_before)
            elif isinstance(part, Qwen3OmniMoeCausalTransConvNet) and part.left_pad > 0:
                # It cuts a stride off both ends of what it makes: one step of before makes up for that.
                part.register_forward_pre_hook(self._go_on)

    def __call__(self, codes: Tensor) -> Tensor:
        waveform: Tensor = self.module(codes)
        return waveform

    def open_stream(self) -> Code2WavStream:
        """A waveform that grows as codes come: together the same as decoding them all at once."""
        return Code2WavStream(self)

    def _go_on(self, part: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
        """Puts what the stream's convolution saw last before what it sees now."""
        if self.stream is None:
            return None
        (now,) = inputs
        before = self.stream.before.get(part)
        seen = now if before is None else torch.cat((before, now), dim=-1)
        reach = part.padding if isinstance(part, Qwen3OmniMoeCausalConvNet) else 1
        self.stream.before[part] = seen[..., -reach:] if reach else seen[..., :0]
        self.stream.repeated[part] = seen.shape[-1] - now.shape[-1]
        return (seen,)

    def _without_before(self, part: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
        """Leaves out what the convolution has made of what it saw before: it was handed on then."""
        return None if self.stream is None else output[..., self.stream.repeated[part] :]


class Code2WavStream:
    """Decodes each frame once, whatever came with it.

    The transformer keeps its keys and values, each convolution the end of what it saw.
    """

    def __init__(self, vocoder: Code2Wav) -> None:
        self._vocoder = vocoder
        self._cache = DynamicCache(config=vocoder.module.config)
        self.before: dict[nn.Module, Tensor] = {}
        self.repeated: dict[nn.Module, int] = {}

    def decode(self, codes: Tensor) -> Tensor:
        """The samples (1, 1, n) that these frames complete."""
        module = self._vocoder.module
        embeds = module.code_embedding(codes + module.code_offset).mean(1)
        hidden = module.pre_transformer(
            inputs_embeds=embeds, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        wave = hidden.permute(0, 2, 1)
        self._vocoder.stream = self
        try:
            for blocks in module.upsample:
                for block in blocks:
                    wave = block(wave)
            for block in module.decoder:
                wave = block(wave)
        finally:
            self._vocoder.stream = None
        return wave.clamp(min=-1, max=1)


def load_code2wav(checkpoint: Qwen3OmniCheckpoint, dtype: torch.dtype, device: str) -> Code2Wav:
    """
    Raises:
        ValueError: The checkpoint has no such component, or not all of it.
    """
    checkpoint.require_talker()
    config = Qwen3OmniMoeCode2WavConfig(**checkpoint.config["code2wav_config"])
    module = load_component(checkpoint.path, "code2wav.", lambda: Qwen3OmniMoeCode2Wav(config), dtype, device)
    return Code2Wav(module)
