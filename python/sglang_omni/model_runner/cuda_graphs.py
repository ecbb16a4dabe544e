"""Functions of a batch that a GPU replays as CUDA graphs: one launch instead of one for each kernel.

A graph is recorded for fixed addresses and a fixed batch size. A batch is copied into the inputs of the
smallest graph that it fits in; the rows behind it are computed too, from what earlier batches left there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import pinned, to_device

logger = logging.getLogger(__name__)

# Batches between two sizes are filled up to the larger one.
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Runs before the recording: libraries choose kernels and allocate their workspaces in the first one.
_WARM_UPS = 2

_recording = threading.Lock()


class Recording(NamedTuple):
    """``replay`` computes ``outputs`` again, in place, from what the inputs hold by then."""

    replay: Callable[[], object]
    outputs: tuple[Tensor, ...]


class Recorder(Protocol):
    """Makes recordings. They share memory: a replay may overwrite the outputs of every other recording."""

    def record(self, run: Callable[[], tuple[Tensor, ...]]) -> Recording:
        """
        Raises:
            RuntimeError: ``run`` cannot be recorded.
        """
        ...


class CudaRecorder:
    """Records what is launched on one GPU as CUDA graphs with a common memory pool.

    Nothing else in the process may wait for the whole GPU during a recording, which that would break:
    recordings are made while models are loaded, and never between requests.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            # Of its own, as cuBLAS has a workspace for each stream, which its graphs go on using.
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], tuple[Tensor, ...]]) -> Recording:
        # torch records one graph at a time. If the end of a recording fails, it leaves its stream current.
        with _recording, torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream()):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    run()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                outputs = run()
        return Recording(graph.replay, outputs)


def recorder_for(device: torch.device, *, cuda_graph: bool) -> Recorder | None:
    """The recorder of a component on ``device``; None on a CPU, or if ``cuda_graph`` is false."""
    return CudaRecorder(device) if device.type == "cuda" and cuda_graph else None


def batch_size_for(count: int) -> int:
    """The smallest of ``BATCH_SIZES`` for ``count`` rows; the largest if there are more."""
    return next((size for size in BATCH_SIZES if size >= count), BATCH_SIZES[-1])


class _Graph(NamedTuple):
    inputs: tuple[Tensor, ...]
    recording: Recording


class GraphedStep:
    """A function of a batch, replayed for the batch sizes that were recorded and called for all others.

    Args:
        name: In the warning, if recording fails.
        device: Of the inputs of ``function``.
        function: Takes tensors (n, ...) and returns tensors (n, ...), each row of which depends on that row
            of the inputs alone; it may overwrite the inputs. It must not read a tensor on the host.
    """

    def __init__(self, name: str, device: torch.device, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self._name = name
        self._device = device
        self._function = function
        self._graphs: dict[int, _Graph] = {}

    def record(self, recorder: Recorder, inputs: Sequence[Tensor]) -> bool:
        """Records graphs for all batches of up to n rows, the largest of ``BATCH_SIZES`` at most.

        Args:
            inputs: (n, ...) each, n one of ``BATCH_SIZES``, with values that the function can compute. The
                graphs keep and overwrite them. Several steps may share them.

        Returns:
            False if the function cannot be recorded, which is logged: it is called then, as without graphs.
        """
        # What is made here is written to in any mode, which inference tensors are not.
        with torch.inference_mode(False), torch.no_grad():
            try:
                # The largest first: smaller ones find room in what it has left of the pool.
                for size in reversed([size for size in BATCH_SIZES if size <= len(inputs[0])]):
                    rows = tuple(given[:size] for given in inputs)
                    self._graphs[size] = _Graph(rows, recorder.record(partial(self._function, *rows)))
            except RuntimeError as error:
                self._graphs.clear()
                logger.warning("%s is computed without CUDA graphs: %s", self._name, error)
                return False
        return True

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The function of ``inputs`` (n, ...), which may be on the host; the results are the caller's.

        Without a graph, what the function overwrites are ``inputs``.
        """
        count = len(inputs[0])
        graph = self._graphs.get(batch_size_for(count))
        if graph is None or count > len(graph.inputs[0]):
            return self._function(*(to_device(given, self._device) for given in inputs))
        for static, given in zip(graph.inputs, inputs, strict=True):
            static[:count].copy_(pinned(given, self._device), non_blocking=True)
        graph.recording.replay()
        return tuple(output[:count].clone() for output in graph.recording.outputs)
