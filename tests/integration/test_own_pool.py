"""The size of SGLang's KV pool is our own, whatever other processes take of the device meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest
from engine_runs import finish
from qwen3_omni_oracle import Oracle
from sglang_engines import assert_empty, engines
from text_engines import greedy, prompts
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.sglang import compat
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder
from sglang_omni.proto import RequestError

GIB = 1 << 30


@pytest.fixture
def build(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> Iterator[Callable[..., Any]]:
    spec = DecoderSpec.from_dir(tiny_checkpoint().path)
    with engines("sglang") as build:
        yield lambda **options: build(spec, **options)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Scripts the GiB that SGLang finds free, call after call; the last ones stay."""
    compat.prepare("cpu")
    from sglang.srt.distributed import bootstrap
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.model_executor import model_runner

    def free(*gib: float) -> None:
        for module, values in (
            (bootstrap, gib[:1]),
            (model_runner, gib[1:2]),
            (kv_cache_configurator, gib[2:]),
        ):
            left = chain(values, repeat(values[-1]))
            monkeypatch.setattr(module, "get_available_gpu_memory", lambda *_, left=left, **__: next(left))

    return free


# An H100 on which four other processes load at the same time.
CROWDED = (78.8, 73.8, 9.7)


def test_sglang_itself_counts_what_others_load(
    script: Callable[..., None], build: Callable[..., Any]
) -> None:
    script(*CROWDED)
    with pytest.raises(ValueError, match="Loaded weights leave no GPU memory for the KV cache"):
        build(max_total_tokens=2048)


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_pool_is_as_large_as_the_share(
    script: Callable[..., None], build: Callable[..., Any], page_size: int
) -> None:
    script(*CROWDED)
    engine = build(max_total_tokens=200, page_size=page_size, memory_bytes=GIB)
    room = engine.stats()["max_total_num_tokens"]
    assert 200 <= room < 200 + page_size
    (prompt,) = prompts(1, [room + 1])
    with pytest.raises(RequestError, match=f"has {room + 1} tokens.*KV cache holds"):
        engine.add(greedy("long", prompt, 1))
    engine.add(greedy("fits", prompt[:190], 4))
    finish(engine)
    assert_empty(engine)


def test_a_pool_beyond_the_share_is_refused(script: Callable[..., None], build: Callable[..., Any]) -> None:
    script(*CROWDED)
    with pytest.raises(ValueError, match=r"1000008 tokens .* this stage's share of cpu, 0\.01 GiB: take"):
        build(max_total_tokens=1_000_000, memory_bytes=GIB // 100)


def test_a_pool_beyond_what_is_free_is_refused(
    script: Callable[..., None], build: Callable[..., Any]
) -> None:
    script(78.8, 73.8, 0.0001)
    with pytest.raises(ValueError, match=r"and cpu has 0\.00 GiB left: take a smaller --max-total-tokens"):
        build(max_total_tokens=2048, memory_bytes=GIB)


def test_what_steps_will_take_must_be_free_too(
    script: Callable[..., None], build: Callable[..., Any]
) -> None:
    script(78.8, 73.8, 0.5)
    how = {"max_total_tokens": 2048, "memory_bytes": GIB}
    build(**how, workspace_bytes=GIB // 4)
    with pytest.raises(ValueError, match=r"steps and graphs 0\.51 GiB, and cpu has 0\.50 GiB left: take"):
        build(**how, workspace_bytes=GIB // 2 + GIB // 100)


def test_mem_fraction_static_leaves_the_size_to_sglang(
    script: Callable[..., None], build: Callable[..., Any]
) -> None:
    script(*CROWDED)
    with pytest.raises(ValueError, match="Loaded weights leave no GPU memory"):
        build(max_total_tokens=2048, memory_bytes=GIB, mem_fraction_static=0.5)


def test_every_slot_has_a_row_for_what_is_captured(
    script: Callable[..., None], qwen3_omni: Callable[..., Oracle]
) -> None:
    """With large pages, as on a B200, the last slots lie beyond the size of the pool."""
    script(*CROWDED)
    spec = thinker_decoder(Qwen3OmniCheckpoint.from_dir(qwen3_omni(seed=0).path), for_speech=True)
    with engines("sglang") as build:
        engine = build(spec, max_total_tokens=256, page_size=64, memory_bytes=GIB)
        pool = engine.scheduler.token_to_kv_pool_allocator
        slots = pool.alloc(pool.available_size())
        captured = engine.scheduler.tp_worker.model_runner.model.captured
        assert slots.max() == pool.size + 63
        assert len(captured) == pool.size + 64
        pool.free(slots)
