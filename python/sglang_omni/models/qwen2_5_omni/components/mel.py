"""The codec's transformer, which makes mel frames of noise, by codes and a voice (flow matching)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from sglang_omni.models.qwen2_5_omni.components.reference import Qwen2_5OmniToken2WavDiTModel
from sglang_omni.models.qwen2_5_omni.components.voices import SpeakerVoice

# transformers' defaults: points in time, how far the condition is overdone, how the points are shifted.
_NUM_POINTS = 10
_GUIDANCE = 0.5
_SWAY = -1.0


class VoiceCondition(NamedTuple):
    """A voice as the transformer reads it: with (row 0) and without (row 1) the condition.

    Attributes:
        recording: (2, d), of the recording.
        vector: (2, d), of the speaker.
    """

    recording: Tensor
    vector: Tensor


class MelSampler:
    """transformers' ``Qwen2_5OmniToken2WavDiTModel``, sampled for several voices at once.

    What does not change from one evaluation to the next is computed once: the condition by codes and voice,
    and the embedding of each point in time.
    """

    def __init__(self, module: Qwen2_5OmniToken2WavDiTModel) -> None:
        self._module = module
        self._device = module.proj_out.weight.device
        self.block_size = int(module.block_size)
        self.repeats = int(module.repeats)
        self.mel_dim = int(module.mel_dim)
        points = torch.linspace(0, 1, _NUM_POINTS)
        points += _SWAY * (torch.cos(torch.pi / 2 * points) - 1 + points)
        self._steps = points.diff().tolist()
        times = [
            torch.stack((begin, begin + step * (1 / 3), begin + step * (2 / 3), end))
            for begin, end, step in zip(points, points[1:], points.diff(), strict=False)
        ]
        with torch.inference_mode():
            # (steps, 4, 1, hidden size)
            self._times = module.time_embed(torch.cat(times).to(self._device)).view(len(times), 4, 1, -1)

    @torch.inference_mode()
    def condition(self, voice: SpeakerVoice) -> VoiceCondition:
        """A voice's part of the condition."""
        mel = voice.mel.to(self._device)
        encoder = self._module.input_embed.spk_encoder
        vector = voice.vector.to(self._device)
        return VoiceCondition(
            encoder(torch.cat((mel, torch.zeros_like(mel)))), torch.cat((vector, torch.zeros_like(vector)))
        )

    @torch.inference_mode()
    def sample(self, codes: Tensor, noise: Tensor, voices: Sequence[VoiceCondition]) -> Tensor:
        """Mel frames of n sequences, by four evaluations a step (the 3/8 rule of Runge and Kutta).

        Args:
            codes: (n, codes) int64.
            noise: (n, frames, mel bins); a code becomes ``repeats`` frames.
            voices: Of each sequence.

        Returns:
            (n, frames, mel bins).
        """
        flow = _Flow(self._module, codes.to(self._device), voices)
        state = noise.to(self._device)
        for step, times in zip(self._steps, self._times, strict=True):
            first = flow(times[0], state)
            second = flow(times[1], state + step * first * (1 / 3))
            third = flow(times[2], state + step * (second - first * (1 / 3)))
            fourth = flow(times[3], state + step * (first - second + third))
            state = state + (first + 3 * (second + third) + fourth) * step / 8
        return state


class _Flow:
    """The direction in which mel frames flow, at a point in time."""

    def __init__(
        self, module: Qwen2_5OmniToken2WavDiTModel, codes: Tensor, voices: Sequence[VoiceCondition]
    ) -> None:
        self._module = module
        # All with the condition, then all without.
        texts = torch.cat((module.text_embed(codes), module.text_embed(codes, drop_code=True)))
        frames = texts.shape[1]
        recordings, vectors = (
            torch.cat([torch.stack([voice[part][kind] for voice in voices]) for kind in (0, 1)])
            .unsqueeze(1)
            .expand(-1, frames, -1)
            for part in (0, 1)
        )
        projection = module.input_embed.proj
        bins = module.mel_dim
        self._weight = projection.weight[:, :bins]
        given = torch.cat((recordings, texts, vectors), dim=-1)
        self._given = linear(given, projection.weight[:, bins:], projection.bias)
        places = torch.arange(frames, device=codes.device)
        self._rotary = module.rotary_embed(texts, places.unsqueeze(0))
        blocks = (places // module.block_size).int()
        self._blocks = (blocks.unsqueeze(0) - blocks.unsqueeze(1)).view(1, 1, frames, frames)

    def __call__(self, time: Tensor, mel: Tensor) -> Tensor:
        """
        Args:
            time: (1, hidden size), embedded.
            mel: (n, frames, mel bins).
        """
        module = self._module
        hidden = self._given + linear(mel, self._weight).repeat(2, 1, 1)
        for block in module.transformer_blocks:
            hidden = block(hidden, time, position_embeddings=self._rotary, block_diff=self._blocks)
        with_condition, without = module.proj_out(module.norm_out(hidden, time)).chunk(2)
        flow: Tensor = with_condition + (with_condition - without) * _GUIDANCE
        return flow
