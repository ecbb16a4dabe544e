"""Causal networks computed piece by piece: what later pieces need of earlier ones is carried between them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from sglang_omni.model_runner.cuda_graphs import GraphedStep, batch_size_for, recorder_for


class StreamMemory:
    """Reads and overwrites what streams keep of earlier pieces; also the cache of a transformer's attention.

    Args:
        kept: (n, ...) each, views of the streams' state, in the order in which the network uses them; None to
            find out their ``shapes``.
        window: Earlier steps that the transformer sees.
        is_first: True if these are the streams' first pieces.
    """

    def __init__(self, kept: Iterator[Tensor] | None, *, window: int = 0, is_first: bool) -> None:
        self._kept = kept
        self._window = window
        self.is_first = is_first
        self.shapes: list[tuple[int, ...]] = []

    def extend(self, now: Tensor, reach: int, dim: int = -1) -> Tensor:
        """``now`` after the ``reach`` earlier steps along ``dim``, which are zeros before the first piece."""
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
        """The method of transformers' caches."""
        return self.extend(keys, self._window, dim=-2), self.extend(values, self._window, dim=-2)


class NetworkStream:
    """The state of one stream, of which every step is computed once.

    Attributes:
        position: Number of frames computed so far.
        state: (1, m), what the next frames need: the end of each convolution's input, and keys and values of
            transformers, in the order in which the network uses them. Zeros at first.
        seen: (1, 1) int64, ``position`` on the network's device.
    """

    def __init__(self, state: Tensor, seen: Tensor) -> None:
        self.position = 0
        self.state = state
        self.seen = seen


class StreamedNetwork(ABC):
    """A causal network whose output for a stream in pieces, joined, equals that for all of it at once.

    Args:
        name: In warnings.
        probe: (1, ..., unit), any input of one frame, which shows what a stream keeps.
        window: Of a transformer that uses ``StreamMemory.update``.
    """

    def __init__(self, name: str, probe: Tensor, *, window: int = 0) -> None:
        self._name = name
        self._device = probe.device
        self._unit = probe.shape[-1]
        self._window = window
        self._steps: dict[tuple[int, bool], GraphedStep] = {}
        with torch.inference_mode(False), torch.no_grad():
            self._probe = probe.clone()
            memory = StreamMemory(None, window=window, is_first=True)
            no_frames = torch.zeros(1, 1, dtype=torch.int64, device=probe.device)
            self.run(self._probe, no_frames, memory)
            self._layout = memory.shapes
            # A new stream's state, and the number of frames that it has seen.
            size = sum(map(math.prod, self._layout))
            self._silence = torch.zeros(1, size, dtype=self.dtype, device=probe.device)
            self._no_frames = no_frames

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of what streams keep."""

    @abstractmethod
    def run(self, inputs: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        """The output (n, ..., m) of pieces (n, ..., frames * unit) from the frames ``positions`` (n, 1) on.

        It uses ``memory`` in the same order each time.
        """

    def open_stream(self) -> NetworkStream:
        """A new stream."""
        return NetworkStream(self._silence, self._no_frames)

    def advance(self, streams: Sequence[NetworkStream], inputs: Tensor) -> Tensor:
        """The output for the next frames of n streams.

        Args:
            streams: Either all or none must be new. If the computation fails, they are unchanged.
            inputs: (n, ..., frames * unit), on any device.
        """
        frames = inputs.shape[-1] // self._unit
        # Copies: the computation overwrites them.
        state = torch.cat([stream.state for stream in streams])
        seen = torch.cat([stream.seen for stream in streams])
        step = self._step(frames, is_first=streams[0].position == 0)
        output, state, seen = step(inputs, state, seen)
        for row, stream in enumerate(streams):
            stream.position += frames
            stream.state, stream.seen = state[row : row + 1], seen[row : row + 1]
        return output

    def record_graphs(self, chunk_sizes: Sequence[int], max_batch_frames: int, *, cuda_graph: bool) -> None:
        """On a GPU, records CUDA graphs of a stream's first chunks, and of its further ones.

        Called before the first request. If they cannot be recorded, a warning says why, and all goes on.

        Args:
            chunk_sizes: Frames of a stream's chunks, in order. Chunks of other sizes need no graph.
            max_batch_frames: Frames computed at once.
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
                inputs = self._probe.new_zeros(rows, *self._probe.shape[1:-1], frames * self._unit)
                step = self._step(frames, is_first=index == 0)
                if not step.record(recorder, (inputs, state[:rows], seen[:rows])):
                    return

    def _step(self, frames: int, *, is_first: bool) -> GraphedStep:
        key = frames, is_first
        if key not in self._steps:
            name = f"{self._name}, for {'first ' if is_first else ''}chunks of {frames} frames,"
            self._steps[key] = GraphedStep(name, self._device, partial(self._compute, is_first=is_first))
        return self._steps[key]

    def _compute(
        self, inputs: Tensor, state: Tensor, seen: Tensor, *, is_first: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The output of the inputs, and what was given, brought up to date."""
        memory = StreamMemory(self._split(state), window=self._window, is_first=is_first)
        output = self.run(inputs, seen, memory)
        return output, state, seen.add_(inputs.shape[-1] // self._unit)

    def _split(self, state: Tensor) -> Iterator[Tensor]:
        begin = 0
        for shape in self._layout:
            size = math.prod(shape)
            yield state.narrow(1, begin, size).unflatten(1, shape)
            begin += size


class DecoderStream(NetworkStream):
    """A stream of a decoder, as the scheduler of vocoders has it."""

    def __init__(self, decoder: StreamedDecoder, state: Tensor, seen: Tensor) -> None:
        super().__init__(state, seen)
        self._decoder = decoder

    def decode(self, codes: Tensor) -> Tensor:
        """The next samples (1, 1, n), given the next codes (1, groups, frames)."""
        return self._decoder.decode_batch([self], codes)


class StreamedDecoder(StreamedNetwork):
    """A ``BatchingVocoder``: from codes (n, groups, frames) int64 to samples (n, 1, samples) in [-1, 1]."""

    def open_stream(self) -> DecoderStream:
        return DecoderStream(self, self._silence, self._no_frames)

    def decode_batch(self, streams: Sequence[NetworkStream], codes: Tensor) -> Tensor:
        """Samples of the next codes of n streams."""
        return self.advance(streams, codes)
