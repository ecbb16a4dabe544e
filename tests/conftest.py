"""What tests of several folders share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from qwen3_omni_oracle import Oracle
from tiny_checkpoints import TinyCheckpoint, make_checkpoint

# How long an example takes says more about the machine than about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder like ``tmp_path``, whose own path leaves room for what is in it: a Unix socket's may have 107
    bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


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


@pytest.fixture(scope="session")
def qwen3_omni(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Oracle]:
    """``qwen3_omni(seed=0, shape="default")``: a tiny checkpoint and transformers' model of it, made once a
    session. See ``qwen3_omni_oracle``."""

    import torch

    torch.set_num_threads(1)

    @cache
    def make(seed: int = 0, shape: str = "default") -> Oracle:
        return Oracle.make(tmp_path_factory.mktemp(f"qwen3-omni-{shape}-{seed}"), seed=seed, shape=shape)

    return make
