"""Attention over the paged cache itself, as on a GPU: all but torch's kernel, for which a plain loop stands.

The loop does what torch documents of ``varlen_attn`` with pages, so that a CPU can tell whether the tables,
lengths and rows that it gets are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_runs import run
from graph_recorders import FakeRecorder
from paged_stand_in import attend_paged
from text_engines import greedy, prompts, serve_random_traffic, text_engine
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines import build
from sglang_omni.model_runner import attention
from sglang_omni.model_runner.batch import PagedBatch
from sglang_omni.model_runner.config import DecoderConfig

Make = Callable[..., TinyCheckpoint]


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> None:
    attend_paged(monkeypatch)


@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize("shape", ["llama", "qwen3", "qwen3moe"])
def test_tokens_are_transformers(tiny_checkpoint: Make, shape: str) -> None:
    checkpoint = tiny_checkpoint(shape)
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=512, chunked_prefill_size=16)
    many = prompts(0, [1, 2, 17, 40])
    expected = [checkpoint.greedy(prompt, 12) for prompt in many]
    for _ in range(2):
        # The second time over cached prefixes.
        assert run(engine, [greedy(str(i), prompt, 12) for i, prompt in enumerate(many)]) == expected
    assert engine.stats()["max_batch_size"] == 4


@pytest.mark.usefixtures("paged")
def test_random_traffic_in_a_pool_that_is_too_small(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen3")
    serve_random_traffic(text_engine(checkpoint.path, page_size=4, max_total_tokens=120), checkpoint)


@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize("shape", ["qwen3", "qwen3moe"])
def test_graphs_are_replayed_for_batches_filled_up(
    tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    checkpoint = tiny_checkpoint(shape)
    recorder = FakeRecorder()
    monkeypatch.setattr(build, "recorder_for", lambda device, cuda_graph: recorder)
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=256, max_running_requests=4)
    many = prompts(1, [9, 5, 20])
    requests = [greedy(str(i), prompt, 9 + 3 * i) for i, prompt in enumerate(many)]

    assert run(engine, requests) == [checkpoint.greedy(p, 9 + 3 * i) for i, p in enumerate(many)]
    # Graphs of 4, 2 and 1 rows, in this order.
    assert recorder.replayed == [*[0] * 8, *[1] * 3, *[2] * 3]


@pytest.mark.usefixtures("paged")
def test_a_refused_graph_is_reported_and_done_without(
    tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tiny_checkpoint("qwen3")
    monkeypatch.setattr(build, "recorder_for", lambda device, cuda_graph: FakeRecorder(refused=1))
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=256)
    (prompt,) = prompts(1, [9])

    assert run(engine, [greedy("a", prompt, 9)]) == [checkpoint.greedy(prompt, 9)]
    assert [r.message for r in caplog.records if "CUDA graphs" in r.message] == [
        "the decoder's step is computed without CUDA graphs: operation not permitted when stream is capturing"
    ]


def test_a_sequences_only_row_has_no_causal_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one, torch's kernel would not fold query heads into rows."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    asked = []

    def varlen_attn(queries: torch.Tensor, *_: Any, window_size: Any, **__: Any) -> torch.Tensor:
        asked.append(window_size)
        return queries

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    some = torch.zeros(1)
    for max_rows in (1, 2):
        attention.paged_attention(some, some, some, PagedBatch(some, some, some, max_rows, 8))
    assert asked == [(-1, -1), (-1, 0)]


def why_not(dtype: torch.dtype = torch.bfloat16, page_size: int = 256, **shape: Any) -> str:
    fields = {"vocab_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    fields |= {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 64, **shape}
    config = DecoderConfig.from_dict(fields, "qwen3")
    return attention.why_not_paged(config, dtype, torch.device("cuda:1"), page_size)


def test_what_the_kernel_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert why_not() == ""
    assert "not torch.float32" in why_not(torch.float32)
    assert "page_size 16 is no multiple of 256" in why_not(page_size=16)
    assert "no multiple of 8" in why_not(head_dim=20)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "older than Ampere" in why_not()


def test_pages_of_the_kernels_size_unless_reported_otherwise(
    tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_checkpoint().path
    assert text_engine(path).scheduler.resources.page_size == build.PAGE_SIZE
    monkeypatch.setattr(attention, "why_not_paged", lambda *args: "" if args[-1] == 256 else "pages")
    assert text_engine(path).scheduler.resources.page_size == attention.PAGE_SIZE
    assert text_engine(path, page_size=8).scheduler.resources.page_size == 8
