"""A request that the KV pool cannot hold is refused or fails at once, and delays no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_runs import finish
from scheduler_runs import running
from sglang_engines import KINDS, assert_empty, engines
from text_engines import greedy, prompts, text_engine
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines import OmniEngine
from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions
from sglang_omni.engines.sglang import compat
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler

Make = Callable[..., TinyCheckpoint]
# Memory is left for so many tokens; the option asks for 2048.
REAL_POOL = 200


def builder(kind: EngineKind, checkpoint: TinyCheckpoint) -> Iterator[Callable[..., Any]]:
    with engines(kind) as build:
        yield lambda **options: build(DecoderSpec.from_dir(checkpoint.path), **options)


@pytest.fixture
def build_sglang(tiny_checkpoint: Make) -> Iterator[Callable[..., Any]]:
    yield from builder("sglang", tiny_checkpoint())


@pytest.fixture(params=KINDS)
def build(request: pytest.FixtureRequest, tiny_checkpoint: Make) -> Iterator[Callable[..., Any]]:
    yield from builder(request.param, tiny_checkpoint())


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang finds room for ``REAL_POOL`` tokens only, and logs a warning."""
    compat.prepare("cpu")
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    constrain = KVCacheConfigurator._apply_token_constraints
    monkeypatch.setattr(
        KVCacheConfigurator,
        "_apply_token_constraints",
        lambda self, tokens: min(constrain(self, tokens), REAL_POOL),
    )


@pytest.mark.usefixtures("short_memory")
def test_admission_goes_by_the_pool_that_was_built(
    build_sglang: Callable[..., Any], tiny_checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build_sglang(max_total_tokens=2048)
    assert "memory leaves no room for the 2048 of max_total_tokens" in caplog.text
    room = engine.stats()["max_total_num_tokens"]
    assert 150 < room <= REAL_POOL
    assert engine.scheduler.token_to_kv_pool_allocator.size == REAL_POOL
    (prompt,) = prompts(1, [room + 1])

    with pytest.raises(RequestError, match=f"has {room + 1} tokens.*KV cache holds {room + 1}") as refused:
        engine.add(greedy("long", prompt, 1))
    assert refused.value.code == "context_length_exceeded"

    # A request that just fits runs, and so does the next one.
    fits, behind = greedy("fits", prompt[:room], None), greedy("behind", prompt[:20], 4)
    engine.add(fits)
    engine.add(behind)
    finish(engine)
    checkpoint = tiny_checkpoint("llama")
    assert fits.output_token_ids == checkpoint.greedy(prompt[:room], 1)
    assert behind.output_token_ids == checkpoint.greedy(prompt[:20], 4)
    assert_empty(engine)


@pytest.mark.usefixtures("short_memory")
def test_a_pool_too_small_for_any_request_is_no_engine(
    build_sglang: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_kv_pool.REAL_POOL", 6)
    with pytest.raises(ValueError, match="room for a KV cache of 6 tokens"):
        build_sglang(max_total_tokens=2048)


def occupy(engine: Any, tokens: int) -> Callable[[], None]:
    """Takes KV for no request, as a leak would. Returns a function that frees it."""
    if not isinstance(engine, OmniEngine):
        pool = engine.scheduler.token_to_kv_pool_allocator
        slots = pool.alloc(tokens)
        return lambda: pool.free(slots)
    resources = engine.scheduler.resources
    leaked = greedy("leaked", [1] * tokens, 1)
    assert resources.grow(leaked, tokens)
    return lambda: resources.release(leaked)


@pytest.mark.parametrize("chunk", [16, 512])
def test_what_can_never_run_fails_and_lets_the_others_go_on(
    chunk: int, build: Callable[..., Any], tiny_checkpoint: Make
) -> None:
    engine = build(max_total_tokens=240, chunked_prefill_size=chunk)
    give_back = occupy(engine, 160)
    (prompt,) = prompts(2, [150])
    stuck, behind = greedy("stuck", prompt, 8), greedy("behind", prompt[:20], 4)
    engine.add(stuck)
    engine.add(behind)

    finish(engine)

    assert stuck.finish_reason == "abort"
    assert isinstance(stuck.failure, RuntimeError)
    assert "150 tokens" in str(stuck.failure)
    assert "240 tokens free" in str(stuck.failure)
    assert behind.failure is None
    assert behind.output_token_ids == tiny_checkpoint("llama").greedy(prompt[:20], 4)
    give_back()
    again = greedy("stuck", prompt, 8)
    engine.add(again)
    finish(engine)
    assert again.output_token_ids == tiny_checkpoint("llama").greedy(prompt, 8)


def test_an_answer_that_outgrows_the_pool_ends(tiny_checkpoint: Make) -> None:
    """A running request that no longer fits returns to the line; it must not do so for ever."""
    engine = text_engine(tiny_checkpoint("llama").path, max_total_tokens=64, page_size=4)
    request = greedy("grows", prompts(3, [20])[0], 40)
    engine.add(request)
    engine.step()
    occupy(engine, 32)

    finish(engine)

    assert isinstance(request.failure, RuntimeError)
    assert 8 < len(request.output_token_ids) < 16


def test_waiting_for_input_is_not_being_stuck(build: Callable[..., Any]) -> None:
    class Late:
        ready_tokens = 30

        def is_ready(self, num_tokens: int) -> bool:
            return num_tokens <= self.ready_tokens

    engine = build(max_total_tokens=64, max_running_requests=4)
    (prompt,) = prompts(4, [30])
    held, waiting = greedy("held", prompt, 8), greedy("waiting", prompt[::-1] + prompt, 1)
    held.state = state = Late()
    engine.add(held)
    engine.add(waiting)
    for _ in range(5):
        engine.step()
    assert not engine.has_work
    assert (held.finish_reason, waiting.finish_reason) == (None, None)

    state.ready_tokens = 64
    finish(engine)
    assert (held.finish_reason, waiting.finish_reason) == ("length", "length")


def test_the_failure_reaches_the_stage(tiny_checkpoint: Make) -> None:
    engine = text_engine(tiny_checkpoint("llama").path, max_total_tokens=64)
    occupy(engine, 32)
    scheduler = OmniScheduler(
        engine,
        lambda payload: greedy(payload.request_id, payload.data, 2),
        lambda payload, request: StagePayload(payload.request_id, payload.request, request.output_token_ids),
    )
    for name, length in (("stuck", 40), ("behind", 10)):
        payload = StagePayload(name, OmniRequest(None), prompts(5, [length])[0])
        scheduler.inbox.put(IncomingMessage(name, "new_request", payload))
    with running(scheduler):
        first, second = scheduler.outbox.get(timeout=60), scheduler.outbox.get(timeout=60)
    assert (first.request_id, first.type) == ("stuck", "error")
    assert "find no room in the KV cache" in str(first.data)
    assert (second.request_id, second.type) == ("behind", "result")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_running_requests", 0),
        ("max_total_tokens", 0),
        ("chunked_prefill_size", 0),
        ("chunked_prefill_size", -2),
        ("context_length", 0),
        ("page_size", 0),
        ("num_threads", 0),
        ("mem_fraction_static", 1.7),
        ("mem_fraction_static", 0.0),
    ],
)
def test_options_with_which_nothing_could_run(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option} must be .*got {value}"):
        EngineOptions(**{option: value})  # type: ignore[arg-type]


def test_a_pool_of_less_than_a_page(tiny_checkpoint: Make) -> None:
    with pytest.raises(ValueError, match=r"max_total_tokens \(15\) must hold at least one page of 16"):
        text_engine(tiny_checkpoint("llama").path, max_total_tokens=15)


def test_a_chunk_of_less_than_a_page(build_sglang: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"chunked_prefill_size \(4\) must hold a page of page_size \(16\)"):
        build_sglang(chunked_prefill_size=4, page_size=16)


def test_prompts_computed_whole(build: Callable[..., Any], tiny_checkpoint: Make) -> None:
    engine = build(chunked_prefill_size=-1)
    (prompt,) = prompts(6, [200])
    request = greedy("a", prompt, 3)
    engine.add(request)
    engine.step()
    assert len(request.output_token_ids) == 1
    finish(engine)
    assert request.output_token_ids == tiny_checkpoint("llama").greedy(prompt, 3)
