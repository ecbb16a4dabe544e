"""What can be told of a GPU without one, with this torch."""

from __future__ import annotations

import time

from bench import Bench
from case_tests import pytest

_LEAST_S = 60.0


def run(bench: Bench) -> None:
    left = max(_LEAST_S, bench.deadline - time.monotonic())
    # Their GPUs are made up: they see none.
    pytest("device", bench, "device", left, {"CUDA_VISIBLE_DEVICES": ""})
