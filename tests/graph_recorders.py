"""Recorders for ``GraphedStep``: on a GPU the real one, elsewhere one that computes again at each replay."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sglang_omni.model_runner.cuda_graphs import CudaRecorder, Recorder, Recording

# Where numbers are compared.
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


class FakeRecorder:
    """Records a call by keeping it.

    Attributes:
        replayed: For each replay so far, its number in the order of recording.
        recorded: How many recordings there are.
        refused: The recording that fails; -1 for none.
    """

    def __init__(self, refused: int = -1) -> None:
        self.replayed: list[int] = []
        self.refused = refused
        self.recorded = 0

    def record(self, run: Callable[[], tuple[Tensor, ...]]) -> Recording:
        number, self.recorded = self.recorded, self.recorded + 1
        if number == self.refused:
            raise RuntimeError("operation not permitted when stream is capturing")
        outputs = run()

        def replay() -> None:
            self.replayed.append(number)
            for output, again in zip(outputs, run(), strict=True):
                output.copy_(again)

        return Recording(replay, outputs)


class CountingRecorder(FakeRecorder):
    """Counts replays, which launch nothing else: for what a step costs, not for what it computes."""

    def record(self, run: Callable[[], tuple[Tensor, ...]]) -> Recording:
        return Recording(lambda: self.replayed.append(0), run())


def recorder_on(device: torch.device | str) -> Recorder:
    device = torch.device(device)
    return CudaRecorder(device) if device.type == "cuda" else FakeRecorder()
