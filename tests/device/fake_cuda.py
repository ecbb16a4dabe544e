"""Tensors on a GPU that does not exist, and what a step on it costs the host.

Under torch's ``FakeTensorMode`` operations compute shapes, dtypes and devices only, so that a machine without
a GPU can tell a step that mixes devices (which raises), count what it launches, and count how often the host
waits for the GPU. What it cannot tell: whether the numbers are right, and indices on another device.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

import sglang_omni
from sglang_omni.model_runner.attention import has_paged_attention
from sglang_omni.model_runner.loader import Checkpoint

# Not the first GPU, so that a bare "cuda" is a mix of devices.
DEVICE = "cuda:1"

# Of a test that records, or counts, a step's attention over a paged cache.
needs_paged_attention = pytest.mark.skipif(
    not has_paged_attention(), reason=f"torch {torch.__version__} has no attention over a paged cache"
)
needs_sglang = pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed")

_PROJECT = os.path.dirname(sglang_omni.__file__) + os.sep
# Operations that only make another view of a tensor, and launch nothing.
_VIEWS = {
    "view", "_unsafe_view", "t", "transpose", "expand", "slice", "select", "unsqueeze", "squeeze", "permute",
    "split", "split_with_sizes", "as_strided", "detach", "unbind", "alias", "narrow", "reshape",
    "_reshape_alias", "unfold", "diagonal", "movedim", "lift_fresh",
}  # fmt: skip


class FakeEvent:
    """An event that is never over before it is waited for."""

    def record(self, stream: object) -> None:
        self._is_over = False

    def query(self) -> bool:
        return self._is_over

    def synchronize(self) -> None:
        self._is_over = True
        for step in Step.entered:
            step.host_reads += 1


@contextmanager
def fake_gpu() -> Iterator[None]:
    """In it, tensors of every device are fake; checkpoints give empty tensors of the right shapes.

    No memory is pinned, as fake tensors have none.
    """
    take, pin_memory = Checkpoint._take, Tensor.pin_memory
    event, current_stream = torch.cuda.Event, torch.cuda.current_stream

    def fake_take(self: Checkpoint, *args: Any, **kwargs: Any) -> Tensor:
        with unset_fake_temporarily():
            real = take(self, *args, **kwargs)
        return torch.empty(real.shape, dtype=real.dtype)

    swap = torch.__future__.get_swap_module_params_on_conversion()
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    # A module moves to a fake device by new parameters; a real one's data cannot be swapped for fake data.
    torch.__future__.set_swap_module_params_on_conversion(False)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    Checkpoint._take = fake_take  # type: ignore[method-assign]
    Tensor.pin_memory = lambda tensor: tensor
    torch.cuda.Event, torch.cuda.current_stream = FakeEvent, lambda device: None
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            yield
    finally:
        Checkpoint._take = take  # type: ignore[method-assign]
        Tensor.pin_memory = pin_memory
        torch.cuda.Event, torch.cuda.current_stream = event, current_stream
        torch.__future__.set_swap_module_params_on_conversion(swap)
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)


class Step(TorchDispatchMode):
    """Counts what happens inside of it, inside of ``fake_gpu``.

    Args:
        value: What every number is that the host reads from a fake tensor.

    Attributes:
        launches: Kernels, by operation; an operation that is several kernels counts once.
        host_reads: Copies from the GPU, single numbers read from it, and events: each makes the host wait.
        downloads: Copies from the GPU that nothing waits for.
        uploads: Copies to the GPU.
        uploaded_bytes: What they copy.
        operations: Of torch, on any device, views too: each costs the host microseconds.
        calls: Of functions of this project. Comprehensions are calls before Python 3.12.
    """

    entered: ClassVar[list[Step]] = []

    def __init__(self, value: int | float = 0) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.host_reads = 0
        self.downloads = 0
        self.uploads = 0
        self.uploaded_bytes = 0
        self.operations = 0
        self.calls = 0
        self._value = value

    @property
    def num_launches(self) -> int:
        return sum(self.launches.values())

    def __enter__(self) -> Step:
        # Of a fake tensor, tolist() would read number by number instead of copying it to the host once.
        self._tolist = FakeTensor.tolist
        FakeTensor.tolist = lambda tensor: self._numbers(tensor)
        super().__enter__()
        Step.entered.append(self)
        self._profile = sys.getprofile()
        sys.setprofile(self._note_call)
        return self

    def __exit__(self, *failure: Any) -> None:
        sys.setprofile(self._profile)
        Step.entered.remove(self)
        super().__exit__(*failure)
        FakeTensor.tolist = self._tolist

    def _note_call(self, frame: Any, event: str, _: object) -> None:
        self.calls += event == "call" and frame.f_code.co_filename.startswith(_PROJECT)

    def _numbers(self, tensor: Tensor) -> Any:
        numbers: Any = self._value
        for size in reversed(tensor.cpu().shape):
            numbers = [numbers] * size
        return numbers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.operations += 1
        if name == "_local_scalar_dense":
            self.host_reads += args[0].device.type == "cuda"
            return self._value
        out = func(*args, **(kwargs or {}))
        source = args[0] if name == "_to_copy" else args[1] if name == "copy_" else None
        if isinstance(source, Tensor) and source.device.type != out.device.type:
            if out.device.type == "cpu":
                if (kwargs or {}).get("non_blocking"):
                    self.downloads += 1
                else:
                    self.host_reads += 1
            else:
                self.uploads += 1
                self.uploaded_bytes += source.nbytes
        elif name not in _VIEWS and _on_gpu(out):
            self.launches[name] += 1
        return out


class Peak(TorchDispatchMode):
    """Counts the bytes of the GPU's tensors that live at the same time, inside of ``fake_gpu``.

    Attributes:
        peak: The most of those that were made inside of it. One kernel's output counts, not what a kernel
            takes while it runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, int] = {}
        # Storages that were there before, or are counted.
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for given in (*args, *(kwargs or {}).values()):
            for tensor in _tensors(given):
                self._note(tensor, is_new=False)
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._note(tensor, is_new=True)
        self.peak = max(self.peak, sum(self._live.values()))
        return out

    def _note(self, tensor: Tensor, *, is_new: bool) -> None:
        if tensor.device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = weakref.ref(storage, lambda _: self._forget(key))
        if is_new:
            # The allocator gives whole blocks of 512 bytes.
            self._live[key] = -(-storage.nbytes() // 512) * 512

    def _forget(self, key: int) -> None:
        self._known.pop(key, None)
        self._live.pop(key, None)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _on_gpu(out: Any) -> bool:
    outputs = out if isinstance(out, tuple | list) else (out,)
    return any(isinstance(output, Tensor) and output.device.type == "cuda" for output in outputs)
