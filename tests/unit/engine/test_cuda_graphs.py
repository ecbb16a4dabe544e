"""Steps replayed from graphs: which graph a batch takes, what it leaves alone, and steps without one."""

from __future__ import annotations

import logging

import pytest
import torch
from graph_recorders import DEVICES, FakeRecorder, recorder_on
from torch import Tensor

from sglang_omni.model_runner.cuda_graphs import GraphedStep, batch_size_for, recorder_for


def doubled(rows: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """A step with an output of its own, and one that is an input brought up to date."""
    return rows * 2, total.add_(rows.sum(dim=1, keepdim=True))


def a_step(device: str, name: str = "doubling") -> GraphedStep:
    return GraphedStep(name, torch.device(device), doubled)


def inputs_of(count: int, device: str) -> tuple[Tensor, Tensor]:
    rows = torch.arange(count * 3.0, device=device).view(count, 3) + 100 * count
    return rows, torch.ones(count, 1, device=device)


def test_sizes_of_batches() -> None:
    assert [batch_size_for(count) for count in (1, 2, 3, 5, 17, 32, 33, 200, 300)] == [
        1,
        2,
        4,
        8,
        32,
        32,
        64,
        256,
        256,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("on_host", [False, True])
def test_every_batch_is_computed_as_without_graphs(device: str, on_host: bool) -> None:
    step = a_step(device)
    assert step.record(recorder_on(device), inputs_of(8, device))
    results = []
    for count in range(1, 12):  # the last ones are too large for any graph
        given = inputs_of(count, "cpu" if on_host else device)
        results.append((count, step(*given)))
        # What the caller gave is its own, if a graph took it.
        assert count > 8 or torch.equal(given[1], torch.ones_like(given[1]))
    # Compared at the end: a later batch has not overwritten what an earlier one returned.
    for count, outputs in results:
        expected = doubled(*inputs_of(count, device))
        assert all(torch.equal(*pair) for pair in zip(outputs, expected, strict=True))


def test_a_batch_takes_the_smallest_graph_that_it_fits_in() -> None:
    recorder, step = FakeRecorder(), a_step("cpu")
    step.record(recorder, inputs_of(8, "cpu"))
    for count in (1, 2, 3, 4, 5, 8, 9):
        step(*inputs_of(count, "cpu"))
    # Recorded from the largest on: 0 is the graph of 8 rows. 9 rows took none.
    assert recorder.replayed == [3, 2, 1, 1, 0, 0]


def test_what_cannot_be_recorded_is_computed_without(caplog: pytest.LogCaptureFixture) -> None:
    recorder, step = FakeRecorder(refused=2), a_step("cpu", "the codec")
    with caplog.at_level(logging.WARNING):
        assert not step.record(recorder, inputs_of(8, "cpu"))
        outputs = step(*inputs_of(8, "cpu"))
    assert [record.getMessage() for record in caplog.records] == [
        "the codec is computed without CUDA graphs: operation not permitted when stream is capturing"
    ]
    assert recorder.replayed == []
    assert torch.equal(outputs[0], inputs_of(8, "cpu")[0] * 2)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_a_gpu_refuses_what_reads_a_tensor_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    step = GraphedStep("reading", torch.device("cuda"), lambda rows: (rows * rows.sum().item(),))
    before = torch.cuda.current_stream()
    assert not step.record(recorder_on("cuda"), (torch.ones(2, 3, device="cuda"),))
    assert "reading is computed without CUDA graphs" in caplog.text
    assert torch.cuda.current_stream() == before
    assert step(torch.ones(2, 3, device="cuda"))[0].tolist() == [[6.0] * 3] * 2
    # And the next recording succeeds.
    assert a_step("cuda").record(recorder_on("cuda"), inputs_of(4, "cuda"))


def test_nothing_is_recorded_on_a_cpu_or_against_the_users_will() -> None:
    assert recorder_for(torch.device("cpu"), cuda_graph=True) is None
    assert recorder_for(torch.device("cuda", 1), cuda_graph=False) is None
