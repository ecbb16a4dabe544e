"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tiny_checkpoints import TinyCheckpoint, make_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyCheckpoint]:
    """``tiny_checkpoint(shape, seed=0)``: a random model of ``SHAPES``, made once a session."""

    import torch

    # These models are too small to share among threads, which would only wait for one another.
    torch.set_num_threads(1)

    @cache
    def make(shape: str = "llama", seed: int = 0) -> TinyCheckpoint:
        return make_checkpoint(tmp_path_factory.mktemp(f"{shape}-{seed}"), shape, seed)

    return make
