"""Copies to a GPU are such that the host need not wait for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from graph_recorders import DEVICES, CountingRecorder
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sglang_omni.model_runner.cuda_graphs import GraphedStep
from sglang_omni.model_runner.host_copies import HostCopy, to_device


class Copies(TorchFunctionMode):
    """Notes of each copy from the host to the GPU whether the host waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []
        self._pinned: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        source = args[1] if func is Tensor.copy_ else args[0] if func is Tensor.to else None
        out = func(*args, **kwargs)
        if source is not None and source.device.type == "cpu" and out.device.type == "cuda":
            self.waits.append(not (id(source) in self._pinned and kwargs.get("non_blocking", False)))
        return out

    def pin(self, tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        self._pinned[id(copy)] = copy
        return copy


def test_they_come_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device(DEVICE)
    step = GraphedStep("adding", gpu, lambda rows: (rows + 1,))
    with fake_gpu(), Copies() as copies, Step() as counted:
        monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: copies.pin(tensor))
        rows = to_device(torch.zeros(3), gpu)
        assert rows.device == gpu
        assert to_device(rows, gpu) is rows
        step(torch.zeros(3, 2))
        step.record(CountingRecorder(), (torch.zeros(4, 2, device=gpu),))
        step(torch.zeros(3, 2))
    assert counted.uploads == 3
    assert copies.waits == [False] * 3


@pytest.mark.parametrize("device", DEVICES)
def test_they_are_what_was_given(device: str) -> None:
    given = torch.arange(6).view(2, 3).t()
    assert to_device(given, torch.device(device)).tolist() == given.tolist()


def test_a_copy_to_the_host_is_waited_for_only_to_read_it() -> None:
    with fake_gpu(), Step() as step:
        copy = HostCopy(torch.zeros(3, 16, dtype=torch.long, device=DEVICE))
        assert not copy.is_done
        assert (step.downloads, step.host_reads) == (1, 0)
        assert copy.read().device.type == "cpu"
        assert copy.is_done
        assert (step.downloads, step.host_reads) == (1, 1)


def test_what_is_on_the_host_stays_there() -> None:
    given = torch.arange(3)
    copy = HostCopy(given)
    assert copy.is_done
    assert copy.read() is given
