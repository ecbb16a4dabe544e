"""OmniEngine on the fake GPU, with the shapes of published models and fewer layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from torch import Tensor

from sglang_omni.engines import build
from sglang_omni.engines.build import build_omni_engine
from sglang_omni.engines.engine import OmniEngine
from sglang_omni.engines.options import DecoderSpec, Dtype, EngineOptions
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.cuda_graphs import Recorder
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.runner import ModelRunner

DENSE = DecoderConfig(
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_hidden_layers=3,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    qk_norm=True,
)
EXPERTS = replace(
    DENSE,
    model_type="qwen3_omni_moe_text",
    hidden_size=2048,
    num_key_value_heads=4,
    mrope_section=(24, 20, 20),
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    norm_topk_prob=True,
)
HOPPER, AMPERE = (9, 0), (8, 0)


class Shapes:
    """A checkpoint of empty tensors, whatever is asked for."""

    def __init__(
        self, path: Path, dtype: torch.dtype, component: str = "", *, device: torch.device | str = "cpu"
    ) -> None:
        self._dtype, self._device = dtype, device

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.empty(*shape, dtype=self._dtype).to(self._device)

    def finish(self, *, optional: Sequence[str] = ()) -> None:
        pass


@contextmanager
def engine_on(
    monkeypatch: pytest.MonkeyPatch,
    config: DecoderConfig,
    dtype: Dtype = "bfloat16",
    capability: tuple[int, int] = HOPPER,
    recorder: Recorder | None = None,
    **options: Any,
) -> Iterator[OmniEngine]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    # In inference mode, operations would be counted before they are decomposed.
    monkeypatch.setattr(ModelRunner, "execute", inspect.unwrap(ModelRunner.execute))
    monkeypatch.setattr(build, "recorder_for", lambda device, cuda_graph: recorder)
    shapes: Any = Shapes
    with fake_gpu():
        yield build_omni_engine(
            DecoderSpec(Path("shapes"), config, open_checkpoint=shapes),
            EngineOptions(
                **{
                    "dtype": dtype,
                    "device": DEVICE,
                    "max_total_tokens": 16_384,
                    "chunked_prefill_size": 1024,
                    **options,
                }
            ),
        )


def add(engine: OmniEngine, *lengths: int) -> None:
    for number, length in enumerate(lengths):
        sampling = RequestSampling(temperature=0.0, max_new_tokens=100)
        engine.add(EngineRequest(f"{number} of {length}", [7] * length, sampling))


def step(engine: OmniEngine) -> Step:
    with Step(value=9) as counted:
        engine.step()
    return counted
