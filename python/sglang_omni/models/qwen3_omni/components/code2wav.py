"""The codec's decoder, from frames of codes to a waveform: whole, or as a stream of any pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_omni.model_runner.cuda_graphs import GraphedStep, batch_size_for, recorder_for
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
        self._device = module.code_offset.device
        self._steps: dict[tuple[int, bool], GraphedStep] = {}
        with torch.inference_mode(False), torch.no_grad():
            # What a stream keeps is told by decoding a frame.
            probe = _Decoding(self, None, is_first=True)
            frame = torch.zeros_like(module.code_offset.view(1, -1, 1))
            wave = probe.run(frame, frame[:, 0])
            self._layout = probe.memory.shapes
            # A new stream's state, and the number of frames that it has seen.
            self._silence = wave.new_zeros(1, sum(map(math.prod, self._layout)))
            self._no_frames = frame.new_zeros(1, 1)

    def __call__(self, codes: Tensor) -> Tensor:
        waveform: Tensor = self.module(codes)
        return waveform

    def open_stream(self) -> Code2WavStream:
        """A stream whose pieces, joined, equal the waveform of all codes at once."""
        return Code2WavStream(self, self._silence, self._no_frames)

    def record_graphs(self, chunk_sizes: Sequence[int], max_batch_frames: int, *, cuda_graph: bool) -> None:
        """On a GPU, records CUDA graphs of a stream's first chunks, and of its further ones.

        Called before the first request. If they cannot be recorded, a warning says why, and all goes on.

        Args:
            chunk_sizes: Frames of a stream's chunks, in order. Chunks of other sizes need no graph.
            max_batch_frames: Frames decoded at once.
        """
        recorder = recorder_for(self._device, cuda_graph=cuda_graph)
        if recorder is None:
            return
        most = batch_size_for(max(1, max_batch_frames // min(chunk_sizes)))
        with torch.inference_mode(False), torch.no_grad():
            # All graphs read and write the same state: only one runs at a time.
            state, seen = self._silence.repeat(most, 1), self._no_frames.repeat(most, 1)
            for index, frames in enumerate(chunk_sizes):
                rows = min(most, batch_size_for(max(1, max_batch_frames // frames)))
                codes = seen.new_zeros(rows, len(self.module.code_offset.view(-1)), frames)
                step = self._step(frames, is_first=index == 0)
                if not step.record(recorder, (codes, state[:rows], seen[:rows])):
                    return

    def decode_batch(self, streams: Sequence[Code2WavStream], codes: Tensor) -> Tensor:
        """Decodes the next frames of n streams to samples (n, 1, samples).

        Args:
            streams: Either all or none must be new. If decoding fails, they are unchanged.
            codes: (n, groups, frames), on any device.
        """
        frames = codes.shape[-1]
        # Copies: decoding overwrites them.
        state = torch.cat([stream.state for stream in streams])
        seen = torch.cat([stream.seen for stream in streams])
        step = self._step(frames, is_first=streams[0].position == 0)
        wave, state, seen = step(codes, state, seen)
        for row, stream in enumerate(streams):
            stream.position += frames
            stream.state, stream.seen = state[row : row + 1], seen[row : row + 1]
        return wave

    def _step(self, frames: int, *, is_first: bool) -> GraphedStep:
        key = frames, is_first
        if key not in self._steps:
            name = f"the codec, for {'first ' if is_first else ''}chunks of {frames} frames,"
            self._steps[key] = GraphedStep(name, self._device, partial(self._decode, is_first=is_first))
        return self._steps[key]

    def _decode(
        self, codes: Tensor, state: Tensor, seen: Tensor, *, is_first: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Samples (n, 1, samples) of codes (n, groups, frames), and what was given, brought up to date."""
        wave = _Decoding(self, self._split(state), is_first=is_first).run(codes, seen)
        return wave, state, seen.add_(codes.shape[-1])

    def _split(self, state: Tensor) -> Iterator[Tensor]:
        begin = 0
        for shape in self._layout:
            size = math.prod(shape)
            yield state.narrow(1, begin, size).unflatten(1, shape)
            begin += size


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
        state: (1, m), what the next frames need: the end of each convolution's input, and the transformer's
            keys and values, in the order in which the decoder uses them. Zeros at first.
        seen: (1, 1) int64, ``position`` on the decoder's device.
    """

    def __init__(self, vocoder: Code2Wav, state: Tensor, seen: Tensor) -> None:
        self._vocoder = vocoder
        self.position = 0
        self.state = state
        self.seen = seen

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes the next frames, codes (1, groups, frames), to samples (1, 1, n)."""
        return self._vocoder.decode_batch([self], codes)


class _Memory:
    """Reads and overwrites what streams keep; the transformer uses it as its cache.

    Args:
        kept: (n, ...) each, views of the streams' state; None to find out their ``shapes``.
        window: Earlier frames that the transformer sees.
    """

    def __init__(self, kept: Iterator[Tensor] | None, window: int) -> None:
        self._kept = kept
        self._window = window
        self.shapes: list[tuple[int, ...]] = []

    def extend(self, now: Tensor, reach: int, dim: int = -1) -> Tensor:
        """``now`` after the ``reach`` earlier steps along ``dim``, which are zeros before the first frame."""
        if self._kept is None:
            shape = list(now.shape)
            shape[dim] = reach
            self.shapes.append(tuple(shape[1:]))
            return torch.cat((now.new_zeros(shape), now), dim=dim)
        kept = next(self._kept)
        seen = torch.cat((kept, now), dim=dim)
        kept.copy_(seen.narrow(dim, seen.shape[dim] - reach, reach))
        return seen

    def update(self, keys: Tensor, values: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return self.extend(keys, self._window, dim=-2), self.extend(values, self._window, dim=-2)


class _Decoding:
    """One pass of the decoder over the next frames of a batch of streams."""

    def __init__(self, vocoder: Code2Wav, kept: Iterator[Tensor] | None, *, is_first: bool) -> None:
        self._module = vocoder.module
        self._snakes = vocoder.snakes
        self._window = vocoder.module.config.sliding_window - 1
        self._is_first = is_first
        self.memory = _Memory(kept, self._window)

    def run(self, codes: Tensor, positions: Tensor) -> Tensor:
        """Samples (n, 1, samples) of codes (n, groups, frames) from the frames ``positions`` (n, 1) on."""
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
