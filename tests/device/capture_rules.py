"""What a CUDA graph cannot be captured with, refused on the fake GPU.

A graph repeats launches. While it is captured the host may not wait for the GPU, so that it reads no number
and no shape that the GPU computes; and what it copies from its own memory would be copied again from where
that memory was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
import torch
from graph_recorders import FakeRecorder
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_omni.model_runner.cuda_graphs import Recording

# The host reads what the GPU computed, or how much of it there is.
_READS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# torch says of these too that their shape follows from the data, which is so for masks among indices alone.
_INDEXED = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_")
# By these the host waits for the GPU, or takes pinned memory, for which CUDA waits.
_CALLS = (
    *((torch.cuda, name) for name in ("synchronize", "empty_cache")),
    *((torch.cuda.Stream, name) for name in ("synchronize", "query")),
    *((torch.cuda.Event, name) for name in ("synchronize", "query", "elapsed_time")),
    (Tensor, "pin_memory"),
)


class NotInAGraphError(AssertionError):
    """An operation that no CUDA graph can hold, and where it was called."""


class _Rules(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _INDEXED:
            given = [index for index in args[1] if isinstance(index, Tensor)]
            if any(index.dtype in (torch.bool, torch.uint8) for index in given):
                raise NotInAGraphError(f"{name} with a mask: the host waits for how many rows it chooses")
            if any(index.device.type == "cpu" and index.dim() for index in given):
                raise NotInAGraphError(f"{name} with indices on the host, which are copied")
        elif any(tag in func.tags for tag in _READS):
            raise NotInAGraphError(f"{name}: the host waits for what it computes")
        elif name == "lift_fresh":
            raise NotInAGraphError("a tensor is made of the host's numbers, which are copied")
        out = func(*args, **(kwargs or {}))
        source = args[0] if name == "_to_copy" else args[1] if name == "copy_" else None
        if isinstance(source, Tensor) and source.device.type != out.device.type:
            raise NotInAGraphError(f"a copy from {source.device.type} to {out.device.type}")
        return out


@contextmanager
def capture() -> Iterator[None]:
    """In it, inside of ``fake_gpu``, whatever a capture would fail at raises ``NotInAGraphError``."""
    with pytest.MonkeyPatch.context() as patch, _Rules():
        for owner, name in _CALLS:
            patch.setattr(owner, name, _refusal(name))
        yield


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotInAGraphError(f"{name}() during a capture")

    return refuse


class CapturingRecorder(FakeRecorder):
    """Runs what is recorded once, by the rules of a capture; replays do nothing."""

    def record(self, run: Callable[[], tuple[Tensor, ...]]) -> Recording:
        with capture():
            outputs = run()
        self.recorded += 1
        return Recording(lambda: self.replayed.append(0), outputs)
