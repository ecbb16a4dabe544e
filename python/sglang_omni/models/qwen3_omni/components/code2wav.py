"""The codec's decoder: frames of codes -> a waveform."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from sglang_omni.model_runner.loader import Checkpoint, load_module, weights_on_meta
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint


class Code2Wav:
    """transformers' own module, which decodes whole sequences, and its parts as a stream.

    Codes are (1, groups, frames) int64. A waveform is (1, 1, samples) in +-1, and a few hundred samples
    shorter than ``frames * total_upsample``: the end of the last frame needs the next one.
    """

    def __init__(self, module: Qwen3OmniMoeCode2Wav) -> None:
        self.module = module
        self.total_upsample = int(module.total_upsample)
        self.conv_context = _conv_context(module.config)

    def __call__(self, codes: Tensor) -> Tensor:
        waveform: Tensor = self.module(codes)
        return waveform

    def open_stream(self) -> Code2WavStream:
        """A waveform that grows as codes come: together the same as decoding them all at once."""
        return Code2WavStream(self)


class Code2WavStream:
    """Decodes each frame once, but for the few that the convolutions reach back to.

    The transformer, whose layers together see hundreds of frames back, keeps its keys and values.
    """

    def __init__(self, vocoder: Code2Wav) -> None:
        self._vocoder = vocoder
        self._cache = DynamicCache(config=vocoder.module.config)
        self._tail: Tensor | None = None  # (1, frames, hidden_size): what the convolutions reach back to
        self._num_frames = 0
        self._num_samples = 0

    def decode(self, codes: Tensor) -> Tensor:
        """The samples (1, 1, n) that these frames complete."""
        module = self._vocoder.module
        embeds = module.code_embedding(codes + module.code_offset).mean(1)
        hidden = module.pre_transformer(
            inputs_embeds=embeds, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        if self._tail is not None:
            hidden = torch.cat((self._tail, hidden), dim=1)
        self._num_frames += codes.shape[-1]
        first = self._num_frames - hidden.shape[1]
        self._tail = hidden[:, -self._vocoder.conv_context :]
        wave = hidden.permute(0, 2, 1)
        for blocks in module.upsample:
            for block in blocks:
                wave = block(wave)
        for block in module.decoder:
            wave = block(wave)
        new = wave.clamp(min=-1, max=1)[..., self._num_samples - first * self._vocoder.total_upsample :]
        self._num_samples += new.shape[-1]
        return new


def load_code2wav(checkpoint: Qwen3OmniCheckpoint, dtype: torch.dtype, device: str) -> Code2Wav:
    """
    Raises:
        ValueError: The checkpoint has no such component, or not all of it.
    """
    checkpoint.require_talker()
    config = Qwen3OmniMoeCode2WavConfig(**checkpoint.config["code2wav_config"])
    with weights_on_meta():
        module = Qwen3OmniMoeCode2Wav(config)
    weights = Checkpoint(checkpoint.path, dtype, "code2wav.")
    load_module(weights, module, "code2wav.")
    weights.finish()
    return Code2Wav(module.to(device))


def _conv_context(config: Qwen3OmniMoeCode2WavConfig) -> int:
    """Frames that the convolutions after the transformer reach back to, one more for what ends are cut."""
    rate, reach = 1, 0.0
    for factor in config.upsampling_ratios:
        rate *= factor
        reach += 6 / rate
    reach += 6 / rate
    for factor in config.upsample_rates:
        reach += 1 / rate
        rate *= factor
        reach += 6 * (1 + 3 + 9) / rate
    return math.ceil(reach + 6 / rate) + 1
