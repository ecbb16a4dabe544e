"""The codec's decoder, from frames of codes to a waveform: whole, or as a stream of any pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_omni.model_runner.loader import load_component
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.reference import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavConfig,
    Qwen3OmniMoeCode2WavDecoderResidualUnit,
    Qwen3OmniMoeConvNeXtBlock,
)


class Code2Wav:
    """transformers' module, which decodes whole sequences, and streams computed with its weights.

    Codes are (1, groups, frames) int64. A waveform is (1, 1, samples) in [-1, 1] and a few hundred samples
    shorter than ``frames * total_upsample``, because the end of the last frame depends on the next one.
    """

    def __init__(self, module: Qwen3OmniMoeCode2Wav) -> None:
        self.module = module
        self.total_upsample = int(module.total_upsample)
        # Found by a field, because the class has another name in each version of transformers.
        self.snakes = {part: Snake(part) for part in module.modules() if hasattr(part, "no_div_by_zero")}

    def __call__(self, codes: Tensor) -> Tensor:
        waveform: Tensor = self.module(codes)
        return waveform

    def open_stream(self) -> Code2WavStream:
        """A stream whose pieces, joined, equal the waveform of all codes at once."""
        return Code2WavStream(self)

    def decode_batch(self, streams: Sequence[Code2WavStream], codes: Tensor) -> Tensor:
        """Decodes the next frames of n streams to samples (n, 1, samples).

        Args:
            streams: Either all or none must be new. If decoding fails, they are unchanged.
            codes: (n, groups, frames).
        """
        kept = [torch.cat(rows) for rows in zip(*(stream.kept for stream in streams), strict=True)]
        positions = torch.tensor([stream.position for stream in streams], device=codes.device)
        decoding = _Decoding(self, kept)
        wave = decoding.run(codes, positions)
        for row, stream in enumerate(streams):
            stream.position += codes.shape[-1]
            stream.kept = [keeps[row : row + 1] for keeps in decoding.memory.keeps]
        return wave


class Snake:
    """``x + sin(x * frequency)^2 * height`` in three passes instead of the reference's eight."""

    def __init__(self, part: Any) -> None:
        with torch.no_grad():
            self._frequency = part.alpha.exp().unsqueeze(-1)
            self._height = (1 / (part.beta.exp() + part.no_div_by_zero)).unsqueeze(-1)

    def __call__(self, wave: Tensor) -> Tensor:
        angle = wave * self._frequency
        if angle.device.type == "cpu" and angle.dtype == torch.float32:
            # Sines take most of the decoder's time, and NumPy's take a third of the time of torch's.
            array = angle.numpy()
            np.sin(array, out=array)
        else:
            angle.sin_()
        return torch.addcmul(wave, angle.square_(), self._height)


class Code2WavStream:
    """The state of a waveform that is decoded in pieces, each frame once.

    Attributes:
        position: Number of frames decoded so far.
        kept: Tensors (1, ...) that the next frames need: the end of each convolution's input, and the
            transformer's keys and values, in the order in which the decoder uses them. Empty at first.
    """

    def __init__(self, vocoder: Code2Wav) -> None:
        self._vocoder = vocoder
        self.position = 0
        self.kept: list[Tensor] = []

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes the next frames, codes (1, groups, frames), to samples (1, 1, n)."""
        return self._vocoder.decode_batch([self], codes)


class _Memory:
    """Reads the kept tensors of streams and collects the next ones; the transformer uses it as its cache."""

    def __init__(self, kept: list[Tensor], window: int) -> None:
        self._kept = iter(kept)
        self._window = window
        self.keeps: list[Tensor] = []

    def extend(self, now: Tensor, reach: int, dim: int = -1) -> Tensor:
        """``now`` after the ``reach`` earlier steps along ``dim``, which are zeros before the first frame."""
        before = next(self._kept, None)
        if before is None:
            shape = list(now.shape)
            shape[dim] = reach
            before = now.new_zeros(shape)
        seen = torch.cat((before, now), dim=dim)
        # A copy, because a view would keep the whole tensor.
        self.keeps.append(seen.narrow(dim, seen.shape[dim] - reach, reach).clone())
        return seen

    def update(self, keys: Tensor, values: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return self.extend(keys, self._window, dim=-2), self.extend(values, self._window, dim=-2)


class _Decoding:
    """One pass of the decoder over the next frames of a batch of streams."""

    def __init__(self, vocoder: Code2Wav, kept: list[Tensor]) -> None:
        self._module = vocoder.module
        self._snakes = vocoder.snakes
        self._window = vocoder.module.config.sliding_window - 1
        self._is_first = not kept
        self.memory = _Memory(kept, self._window)

    def run(self, codes: Tensor, positions: Tensor) -> Tensor:
        """Samples (n, 1, samples) of codes (n, groups, frames) from the frames ``positions`` (n,) onwards."""
        module = self._module
        wave = self._transform(module.code_embedding(codes + module.code_offset).mean(1), positions)
        wave = wave.transpose(1, 2)
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

    def _transform(self, embeds: Tensor, positions: Tensor) -> Tensor:
        window, device = self._window, embeds.device
        frames = torch.arange(embeds.shape[1], device=device)
        # A frame attends to itself and earlier frames within the window, not to zeros before the first frame.
        key, query = torch.arange(window + len(frames), device=device), frames.unsqueeze(-1)
        positions = positions.unsqueeze(-1)
        seen = (key >= query) & (key <= query + window) & (key >= window - positions).unsqueeze(1)
        hidden: Tensor = self._module.pre_transformer(
            inputs_embeds=embeds,
            attention_mask={"sliding_attention": seen.unsqueeze(1)},
            position_ids=positions + frames,
            past_key_values=self.memory,
            use_cache=True,
        ).last_hidden_state
        return hidden

    def _convolve(self, part: Qwen3OmniMoeCausalConvNet, wave: Tensor) -> Tensor:
        conv = part.conv
        if part.padding:
            wave = self.memory.extend(wave, part.padding)
        return F.conv1d(wave, conv.weight, conv.bias, dilation=conv.dilation, groups=conv.groups)

    def _transposed(self, part: Qwen3OmniMoeCausalTransConvNet, wave: Tensor) -> Tensor:
        cut = part.left_pad
        if not cut:
            return cast(Tensor, part(wave))
        # The module cuts a stride off both ends of its output; one earlier step makes up for that.
        wave = part(self.memory.extend(wave, 1))
        return wave[..., cut:] if self._is_first else wave

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
        ValueError: The component is missing or incomplete.
    """
    checkpoint.require_talker()
    # The streams' masks need this attention, whatever a checkpoint names.
    settings = {**checkpoint.config["code2wav_config"], "attn_implementation": "sdpa"}
    config = Qwen3OmniMoeCode2WavConfig(**settings)
    module = load_component(checkpoint.path, "code2wav.", lambda: Qwen3OmniMoeCode2Wav(config), dtype, device)
    return Code2Wav(module)
