"""SGLang's Triton kernels of a step compile for every kind of GPU, as when `make prove-gpu` was last run.

They take no nvcc, so that this first tenth of `make prove-gpu` needs no environment of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import gpu_proofs
import pytest


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", gpu_proofs.KINDS)
def test_they_compile_and_fit_its_shared_memory(kind: str, tmp_path: Path) -> None:
    kept = json.loads(gpu_proofs.KEPT.read_text())["columns"][kind]
    before = {name: row for name, row in kept.items() if name.startswith("Triton: ")}
    assert len(before) == 4
    proved = gpu_proofs.in_a_process(kind, tmp_path, "--triton-alone")
    assert gpu_proofs.failed(gpu_proofs.KINDS[kind], proved, before) == {}
    assert proved == before
