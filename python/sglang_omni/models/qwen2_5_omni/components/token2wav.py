"""The codec's decoder: its transformer, its vocoder, and the voices."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sglang_omni.model_runner.loader import Checkpoint, load_module, weights_on_meta
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.mel import MelSampler, VoiceCondition
from sglang_omni.models.qwen2_5_omni.components.reference import (
    Qwen2_5OmniBigVGANConfig,
    Qwen2_5OmniDiTConfig,
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
)
from sglang_omni.models.qwen2_5_omni.components.vocoder import MelVocoder
from sglang_omni.models.qwen2_5_omni.components.voices import FILE, load_voices

_DIT, _VOCODER = "token2wav.code2wav_dit_model.", "token2wav.code2wav_bigvgan_model."
# Published checkpoints hold a table that the model computes itself.
_COMPUTED = f"{_DIT}rotary_embed.inv_freq"


class Token2Wav(NamedTuple):
    """
    Attributes:
        voices: The condition of each, by its name.
    """

    sampler: MelSampler
    vocoder: MelVocoder
    voices: dict[str, VoiceCondition]


def load_token2wav(checkpoint: Qwen25OmniCheckpoint, device: str) -> Token2Wav:
    """
    Raises:
        FileNotFoundError, ValueError: The component is missing or incomplete.
    """
    checkpoint.require_talker()
    codec = checkpoint.config["token2wav_config"]
    # The blocks' masks need this attention, whatever a checkpoint names.
    dit = Qwen2_5OmniDiTConfig(**{**codec["dit_config"], "attn_implementation": "sdpa"})
    with weights_on_meta():
        transformer = Qwen2_5OmniToken2WavDiTModel(dit)
        vocoder = Qwen2_5OmniToken2WavBigVGANModel(Qwen2_5OmniBigVGANConfig(**codec["bigvgan_config"]))
    for module, prefix in ((transformer, _DIT), (vocoder, _VOCODER)):
        reader = Checkpoint(checkpoint.path, torch.float32, prefix)
        load_module(reader, module, prefix)
        reader.finish(optional=(_COMPUTED,))
        module.to(device)
    sampler = MelSampler(transformer)
    voices = {name: sampler.condition(voice) for name, voice in load_voices(checkpoint.path / FILE).items()}
    return Token2Wav(sampler, MelVocoder(vocoder), voices)
