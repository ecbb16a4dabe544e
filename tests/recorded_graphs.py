"""SGLang's runner of CUDA graphs on a CPU: what it captures is recorded, and repeated on the same tensors.

A CUDA graph repeats launches, on the addresses that they had: nothing that Python decides or reads is looked
at again. ``Recording`` does the same with torch's operations. A model that passes here on SGLang's own runner
reads nothing but static buffers; what is left to a GPU is the capture itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Recording(TorchDispatchMode):
    """The operations inside of it, to be repeated with whatever their tensors hold then."""

    current: Recording | None = None

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Callable[[], Any]] = []
        self._inside_step = False

    def __enter__(self) -> Recording:
        Recording.current = self
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        Recording.current = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self._inside_step:
            if func._schema.is_mutable:
                self._steps.append(lambda: func(*args, **kwargs))
            elif not any(_storage(a) == _storage(out) for a in args if isinstance(a, Tensor)):
                self._steps.append(lambda: _copy(out, func(*args, **kwargs)))
        return out

    def call(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Records ``step`` as one operation, as a kernel is that looks into its tensors."""
        self._inside_step = True
        out = step(*args, **kwargs)
        self._inside_step = False
        self._steps.append(lambda: _copy(out, step(*args, **kwargs)))
        return out

    def repeat(self) -> None:
        for step in self._steps:
            step()


def _storage(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None


def _copy(out: Any, new: Any) -> None:
    if isinstance(out, Tensor):
        out.copy_(new)
    else:
        for one, other in zip(out, new, strict=True):
            _copy(one, other)


def as_kernel(owner: Any, name: str) -> None:
    """Lets recordings take the method ``name`` of ``owner`` for one operation."""
    method = getattr(owner, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        recording = Recording.current
        return method(*args, **kwargs) if recording is None else recording.call(method, *args, **kwargs)

    setattr(owner, name, run)


class _RecordedGraphs:
    """Stands for SGLang's ``FullCudaGraphBackend``."""

    def __init__(self, runner: Any) -> None:
        self._runs: dict[Any, tuple[Recording, Any]] = {}
        self.num_replays = 0

    @contextmanager
    def capture_session(self, stream: Any) -> Iterator[None]:
        yield

    @contextmanager
    def replay_session(self) -> Iterator[None]:
        yield

    def capture_one(self, key: Any, forward: Callable[[], Any], **_: Any) -> None:
        forward()
        with Recording() as recording:
            out = forward()
        self._runs[key] = recording, out

    def can_run(self, forward_batch: Any, key: Any) -> bool:
        return key in self._runs

    def replay(self, key: Any, forward_batch: Any, **_: Any) -> Any:
        recording, out = self._runs[key]
        recording.repeat()
        self.num_replays += 1
        return out


def record_decode_steps(
    engine: Any, batch_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> _RecordedGraphs:
    """Has SGLang's runner "capture" an ``SGLangEngine`` on a CPU for batches of these sizes."""
    from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
    from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner as graphs
    from sglang.srt.runtime_context import get_exec

    @contextmanager
    def graph_capture(stream: Any) -> Iterator[Any]:
        yield SimpleNamespace(stream=None)

    monkeypatch.setattr(graphs, "graph_capture", graph_capture)
    monkeypatch.setattr(graphs, "get_or_create_global_graph_capture_stream", lambda: None)
    monkeypatch.setattr(graphs, "resolve_decode_backend", _RecordedGraphs)
    monkeypatch.setattr(
        graphs.DecodeCudaGraphRunner, "_record_in_graph_metadata_prep_done", lambda self: None
    )
    runner = engine.scheduler.tp_worker.model_runner
    backend = runner.attn_backend
    # Plain torch keeps nothing between steps.
    backend.init_cuda_graph_state = lambda *args: None
    backend.get_cuda_graph_seq_len_fill_value = lambda: 1
    backend.init_forward_metadata_out_graph = lambda *args, **kwargs: None
    backend.init_forward_metadata_in_graph = lambda *args: None
    backend.shared_read_ends = lambda mode: SharedReadEnds.UNKNOWN
    as_kernel(backend, "forward")
    for layer in runner.model.layers:
        if hasattr(layer.mlp, "experts"):
            as_kernel(layer.mlp.experts, "forward")
    with engine._runtime.active():
        get_exec().graph.cuda_graph_config.decode.bs = batch_sizes
        runner.graph_shared_output = GraphSharedOutput(device=torch.device("cpu"), max_rows=max(batch_sizes))
        runner.decode_cuda_graph_runner = graphs.DecodeCudaGraphRunner(runner)
    recorded: _RecordedGraphs = runner.decode_cuda_graph_runner.backend
    return recorded
