"""What is set in a process with a stage on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from sglang_steps import sglang_on_the_fake_gpu
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.model_runner.attention import avoid_cudnn


@pytest.fixture(autouse=True)
def process_of_a_stage() -> Iterator[None]:
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    avoid_cudnn()
    yield
    torch.backends.cuda.enable_cudnn_sdp(enabled)


@pytest.fixture(scope="module")
def sglang(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> Iterator[None]:
    """SGLang's settings, and stand-ins for its kernels."""
    with sglang_on_the_fake_gpu(tiny_checkpoint("llama").path):
        yield
