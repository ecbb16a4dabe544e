"""The codec Mimi: sound to frames of codes, and frames of codes to sound, whole or as a stream of any pieces.

transformers' module holds the weights. It decodes whole sequences; its own cache covers the transformer but
not the convolutions, so that pieces decoded with it have seams. The streams here keep what each convolution
needs of earlier frames too, and several are decoded at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.model_runner.cuda_graphs import GraphedStep, batch_size_for, recorder_for
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import load_component


class Mimi:
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
        self._device: torch.device = next(module.parameters()).device
        self._steps: dict[int, GraphedStep] = {}
        with torch.inference_mode(False), torch.no_grad():
            # What a stream keeps is told by decoding a frame.
            frame = torch.zeros(1, self.num_groups, 1, dtype=torch.long, device=self._device)
            probe = _Decoding(module, None)
            wave = probe.run(frame, frame[:, 0])
            self._layout = probe.shapes
            # A new stream's state, and the number of frames that it has seen.
            self._silence = wave.new_zeros(1, sum(map(math.prod, self._layout)))
            self._no_frames = frame.new_zeros(1, 1)

    def __call__(self, codes: Tensor) -> Tensor:
        """The waveform (1, 1, samples) of all codes at once, by transformers."""
        return cast(Tensor, self.module.decode(codes.to(self._device)).audio_values)

    def open_stream(self) -> MimiStream:
        """A stream whose pieces, joined, equal the waveform of all codes at once, up to rounding."""
        return MimiStream(self, self._silence, self._no_frames)

    def record_graphs(self, chunk_sizes: Sequence[int], max_batch_frames: int, *, cuda_graph: bool) -> None:
        """On a GPU, records CUDA graphs of a stream's chunks.

        Called before the first request. If they cannot be recorded, a warning says why, and all goes on.

        Args:
            chunk_sizes: Frames of a stream's chunks. Chunks of other sizes need no graph.
            max_batch_frames: Frames decoded at once.
        """
        recorder = recorder_for(self._device, cuda_graph=cuda_graph)
        if recorder is None:
            return
        most = batch_size_for(max(1, max_batch_frames // min(chunk_sizes)))
        with torch.inference_mode(False), torch.no_grad():
            # All graphs read and write the same state: only one runs at a time.
            state, seen = self._silence.repeat(most, 1), self._no_frames.repeat(most, 1)
            for frames in sorted(set(chunk_sizes)):
                rows = min(most, batch_size_for(max(1, max_batch_frames // frames)))
                codes = seen.new_zeros(rows, self.num_groups, frames)
                if not self._step(frames).record(recorder, (codes, state[:rows], seen[:rows])):
                    return

    def decode_batch(self, streams: Sequence[MimiStream], codes: Tensor) -> Tensor:
        """Decodes the next frames of n streams to samples (n, 1, frames * total_upsample).

        Args:
            streams: If decoding fails, they are unchanged.
            codes: (n, groups, frames), on any device.
        """
        # Copies: decoding overwrites them.
        state = torch.cat([stream.state for stream in streams])
        seen = torch.cat([stream.seen for stream in streams])
        wave, state, seen = self._step(codes.shape[-1])(codes, state, seen)
        for row, stream in enumerate(streams):
            stream.state, stream.seen = state[row : row + 1], seen[row : row + 1]
        return wave

    def _step(self, frames: int) -> GraphedStep:
        if frames not in self._steps:
            name = f"the codec, for chunks of {frames} frames,"
            self._steps[frames] = GraphedStep(name, self._device, self._decode)
        return self._steps[frames]

    def _decode(self, codes: Tensor, state: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wave = _Decoding(self.module, self._split(state)).run(codes, seen)
        return wave, state, seen.add_(codes.shape[-1])

    def _split(self, state: Tensor) -> Iterator[Tensor]:
        begin = 0
        for shape in self._layout:
            size = math.prod(shape)
            yield state.narrow(1, begin, size).unflatten(1, shape)
            begin += size


class MimiStream:
    """The state of a waveform that is decoded in pieces, each frame once.

    Attributes:
        state: (1, m), the end of each convolution's input and the transformer's keys and values, in the
            order in which the decoder uses them. Zeros at first.
        seen: (1, 1) int64, the number of frames decoded so far.
    """

    def __init__(self, codec: Mimi, state: Tensor, seen: Tensor) -> None:
        self._codec = codec
        self.state = state
        self.seen = seen

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes the next frames, codes (1, groups, frames), to samples (1, 1, n)."""
        return self._codec.decode_batch([self], codes)


class _Decoding:
    """One pass of the decoder over the next frames of a batch of streams; also its transformer's cache.

    Args:
        kept: (n, ...) each, views of the streams' state, which are overwritten; None to find out ``shapes``.
    """

    def __init__(self, module: Any, kept: Iterator[Tensor] | None) -> None:
        self._module = module
        self._kept = kept
        self._window = int(module.config.sliding_window) - 1
        self.shapes: list[tuple[int, ...]] = []

    def run(self, codes: Tensor, seen: Tensor) -> Tensor:
        """Samples (n, 1, samples) of codes (n, groups, frames), after ``seen`` (n, 1) frames."""
        module = self._module
        wave = module.quantizer.decode(codes)
        if module.upsample is not None:
            wave = self._convolve_transposed(module.upsample.conv, wave)
        hidden = self._transform(wave.transpose(1, 2), seen * (wave.shape[-1] // codes.shape[-1]))
        wave = hidden.transpose(1, 2)
        for layer in module.decoder.layers:
            wave = self._layer(layer, wave)
        return wave

    def _layer(self, layer: Any, wave: Tensor) -> Tensor:
        if hasattr(layer, "block"):
            inner = wave
            for part in layer.block:
                inner = self._layer(part, inner)
            return self._layer(layer.shortcut, wave) + inner
        conv = getattr(layer, "conv", None)
        if isinstance(conv, nn.ConvTranspose1d):
            return self._convolve_transposed(conv, wave)
        if isinstance(conv, nn.Conv1d):
            wave = self._extend(wave, (conv.kernel_size[0] - 1) * conv.dilation[0])
            return F.conv1d(wave, conv.weight, conv.bias, dilation=conv.dilation, groups=conv.groups)
        return cast(Tensor, layer(wave))

    def _convolve_transposed(self, conv: nn.ConvTranspose1d, wave: Tensor) -> Tensor:
        # A sample depends on the steps whose kernels reach it: zeros before the first add nothing.
        stride, count = conv.stride[0], wave.shape[-1]
        reach = math.ceil(conv.kernel_size[0] / stride) - 1
        return conv(self._extend(wave, reach)).narrow(-1, reach * stride, count * stride)

    def _transform(self, hidden: Tensor, positions: Tensor) -> Tensor:
        module, window, device = self._module.decoder_transformer, self._window, hidden.device
        steps = torch.arange(hidden.shape[1], device=device)
        # A step attends to itself and to earlier ones within the window, not to zeros before the first.
        key, query = torch.arange(window + len(steps), device=device), steps.unsqueeze(-1)
        mask = (key >= query) & (key <= query + window) & (key >= window - positions).unsqueeze(1)
        turns = module.rotary_emb(hidden, positions + steps)
        for layer in module.layers:
            (hidden,) = layer(
                hidden, attention_mask=mask.unsqueeze(1), past_key_values=self, position_embeddings=turns
            )
        return hidden

    def update(self, keys: Tensor, values: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """As a cache's of transformers: keys and values (n, heads, steps, dim) after those of the window."""
        return self._extend(keys, self._window, dim=-2), self._extend(values, self._window, dim=-2)

    def _extend(self, now: Tensor, reach: int, dim: int = -1) -> Tensor:
        """``now`` after the ``reach`` earlier steps along ``dim``, which are zeros before the first frame."""
        if reach == 0:
            return now
        if self._kept is None:
            shape = list(now.shape)
            shape[dim] = reach
            self.shapes.append(tuple(shape[1:]))
            return torch.cat((now.new_zeros(shape), now), dim=dim)
        kept = next(self._kept)
        seen = torch.cat((kept, now), dim=dim)
        kept.copy_(seen.narrow(dim, seen.shape[dim] - reach, reach))
        return seen


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
