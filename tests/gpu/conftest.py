"""Tests that need a CUDA GPU. Without one nothing here is collected; ``make test-gpu`` runs them alone."""

from __future__ import annotations

from pathlib import Path


def _has_gpu() -> bool:
    # Where there is no driver the answer must not cost importing torch.
    if not Path("/dev/nvidiactl").exists():
        return False
    import torch

    return torch.cuda.is_available()


collect_ignore_glob = [] if _has_gpu() else ["test_*.py"]
