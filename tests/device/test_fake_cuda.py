"""What the budgets of this folder rest on: the fake GPU refuses what a GPU refuses, and counts."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu


def test_devices_do_not_mix() -> None:
    with fake_gpu():
        here, there = torch.zeros(4, device=DEVICE), torch.zeros(4, device="cuda:0")
        with pytest.raises(RuntimeError, match="device"):
            here + there
        with pytest.raises(RuntimeError, match="device"):
            here + torch.zeros(4)


def test_what_a_step_costs_is_counted() -> None:
    with fake_gpu(), Step() as step:
        rows = torch.zeros(4, 8).to(DEVICE)
        doubled = (rows * 2).view(8, 4)[1:].sum()
        assert doubled.item() == 0
        assert rows.cpu().device.type == "cpu"
        assert rows.argmax(dim=-1).tolist() == [0] * 4
    assert step.uploads == 1
    assert step.launches == {"mul": 1, "sum": 1, "argmax": 1}
    # item(), cpu() and tolist().
    assert step.host_reads == 3
