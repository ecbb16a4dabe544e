"""SGLang's scheduler serves text models with transformers' tokens, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_runs import finish, run
from sglang_engines import assert_empty, engines, expect_short_answers
from text_engines import greedy, prompts, serve_random_traffic, text_engine
from tiny_checkpoints import SHAPES, VOCAB_SIZE, TinyCheckpoint, make_checkpoint

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.proto import RequestError

Make = Callable[..., TinyCheckpoint]
# build(path, **options)
Build = Callable[..., Any]


@pytest.fixture
def build() -> Iterator[Build]:
    with engines() as build:
        yield lambda path, **options: build(DecoderSpec.from_dir(path), **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_alone_in_a_batch_and_over_a_cached_prefix(tiny_checkpoint: Make, build: Build, shape: str) -> None:
    checkpoint = tiny_checkpoint(shape, 0)
    engine = build(checkpoint.path, chunked_prefill_size=16)
    many = prompts(0, [1, 2, 5, 17, 40, 90])
    expected = [checkpoint.greedy(prompt, 24) for prompt in many]
    assert len({token for tokens in expected for token in tokens}) > 20, "the oracle's tokens should vary"

    alone = [run(engine, [greedy("a", prompt, 24)])[0] for prompt in many]
    engine.flush_cache()
    fresh = [greedy(str(i), prompt, 24) for i, prompt in enumerate(many)]
    together = run(engine, fresh)
    again = [greedy(str(i), prompt, 24) for i, prompt in enumerate(many)]

    assert alone == expected
    assert together == expected
    assert run(engine, again) == expected
    # The last token of a prompt is always computed: its logits are wanted.
    assert [request.cached_tokens for request in fresh] == [0] * 6
    assert [request.cached_tokens for request in again] == [0, 1, 4, 16, 39, 89]
    assert engine.stats()["max_batch_size"] == 6
    assert_empty(engine)


def test_scaled_positions_and_biases(tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "llama-biased", {**SHAPES["llama-rope3-untied"], "mlp_bias": False})
    checkpoint = make_checkpoint(tmp_path, "llama-biased", 0)
    (prompt,) = prompts(3, [100])

    assert run(build(tmp_path), [greedy("a", prompt, 30)]) == [checkpoint.greedy(prompt, 30)]


def test_a_follow_up_finds_the_answer_in_the_cache(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("qwen2", 7)
    engine = build(checkpoint.path)
    question, follow_up = prompts(7, [10, 5])
    (answer,) = run(engine, [greedy("1", question, 20)])
    second = greedy("2", question + answer + follow_up, 20)

    assert run(engine, [second]) == [checkpoint.greedy(question + answer + follow_up, 20)]
    # The answer's last token was never fed back.
    assert second.cached_tokens == 29


def test_what_cannot_be_shared_is_not(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    engine = build(checkpoint.path, chunked_prefill_size=16)
    (prompt,) = prompts(1, [40])
    expected = checkpoint.greedy(prompt, 10)

    for cacheable, cached in [(False, 0), (True, 0), (False, 0), (True, 39)]:
        request = greedy("a", prompt, 10)
        request.cacheable = cacheable
        assert run(engine, [request]) == [expected]
        assert request.cached_tokens == cached
    other_key = greedy("a", prompt, 10)
    other_key.key_token_ids = [VOCAB_SIZE + 7, *prompt[1:]]
    engine.add(other_key)
    engine.step()
    assert other_key.cached_tokens == 0


def test_requests_put_out_of_a_full_pool_come_back(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("qwen3", 4)
    engine = build(checkpoint.path, max_total_tokens=112)
    expect_short_answers(engine)
    many = prompts(4, [20, 25, 18, 22, 30, 8])
    expected = [checkpoint.greedy(prompt, 60) for prompt in many]

    assert run(engine, [greedy(str(i), prompt, 60) for i, prompt in enumerate(many)]) == expected
    assert engine.stats()["num_retracted_requests_total"] > 0
    assert_empty(engine)


def test_what_the_pool_cannot_hold_is_given_up(
    tiny_checkpoint: Make, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(tiny_checkpoint("llama", 0).path)
    request = greedy("a", prompts(3, [20])[0], 10)
    engine.add(request)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(
            "sglang.srt.managers.schedule_batch.ScheduleBatch.check_decode_mem", lambda *args, **kwargs: False
        )
        assert engine.step() == [request]
    assert request.finish_reason == "abort"
    assert "find no room in the KV cache" in str(request.failure)
    assert len(request.output_token_ids) == 1
    assert_empty(engine)


def test_one_request_may_fill_the_pool(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama", 5)
    engine = build(checkpoint.path, max_total_tokens=40)
    (prompt,) = prompts(5, [25])
    request = greedy("a", prompt, None)

    assert run(engine, [request]) == [checkpoint.greedy(prompt, 16)]
    assert request.finish_reason == "length"
    assert_empty(engine)


def test_pages_of_several_tokens(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("qwen3", 4)
    engine = build(checkpoint.path, max_total_tokens=112, page_size=4, chunked_prefill_size=16)
    expect_short_answers(engine)
    many = prompts(4, [20, 25, 18, 22])
    expected = [checkpoint.greedy(prompt, 60) for prompt in many]

    for _ in range(2):
        requests = [greedy(str(i), prompt, 60) for i, prompt in enumerate(many)]
        assert run(engine, requests) == expected
        assert_empty(engine)
    assert all(request.cached_tokens % 4 == 0 for request in requests)
    full = greedy("full", many[0], None)
    assert run(engine, [full]) == [checkpoint.greedy(many[0], 93)]


def test_one_request_may_fill_the_context(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama", 5)
    engine = build(checkpoint.path)
    (prompt,) = prompts(5, [240])
    request = greedy("a", prompt, None)

    # 256 positions, and the last token needs none.
    assert run(engine, [request]) == [checkpoint.greedy(prompt, 16)]


@pytest.mark.parametrize("options", [{"max_total_tokens": 100}, {"context_length": 101}])
def test_a_prompt_that_can_never_run_is_refused(
    tiny_checkpoint: Make, build: Build, options: dict[str, int]
) -> None:
    engine = build(tiny_checkpoint("llama", 0).path, **options)
    (prompt,) = prompts(6, [101])

    with pytest.raises(RequestError, match="shorten the prompt to 100 tokens"):
        engine.add(greedy("a", prompt, 1))
    with pytest.raises(RequestError, match="empty"):
        engine.add(greedy("a", [], 1))
    assert not engine.has_work
    engine.add(greedy("a", prompt[:100], 1))
    with pytest.raises(ValueError, match="already"):
        engine.add(greedy("a", prompt[:100], 1))
    finish(engine)
    assert_empty(engine)


def test_an_abort_frees_at_once(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    engine = build(checkpoint.path, chunked_prefill_size=16, max_running_requests=3)
    long, *others = prompts(8, [50, 12, 9, 7])
    for steps in range(8):
        kept = greedy("kept", others[0], 12)
        gone = [greedy("1", long, 40), greedy("10", others[1], 40), greedy("100", others[2], 40)]
        for request in [*gone[:1], kept, *gone[1:]]:
            engine.add(request)
        for _ in range(steps):
            engine.step()

        for request in gone:
            assert engine.abort(request.request_id) is request
            assert request.finish_reason == "abort"
            assert engine.abort(request.request_id) is None
        # What the kept one holds, and nothing of the others.
        assert engine.stats()["kv_used_tokens"] <= len(others[0]) + 12
        finish(engine)

        assert kept.output_token_ids == checkpoint.greedy(others[0], 12), steps
        assert_empty(engine)
        engine.flush_cache()


def test_random_traffic_with_aborts(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama", 9)
    engine = build(checkpoint.path, max_total_tokens=160, max_running_requests=5, chunked_prefill_size=16)
    serve_random_traffic(engine, checkpoint)
    assert_empty(engine)


def test_a_failed_step_takes_its_requests_and_no_more(
    tiny_checkpoint: Make, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    engine = build(checkpoint.path, chunked_prefill_size=16, max_running_requests=2)
    many = prompts(14, [40, 30, 9])
    expected = [checkpoint.greedy(prompt, 8) for prompt in many]
    for failing in range(6):
        requests = [greedy(str(i), prompt, 8) for i, prompt in enumerate(many)]
        for request in requests:
            engine.add(request)
        for _ in range(failing):
            engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(engine.scheduler.sampler, "forward", _fail)
            with pytest.raises(RuntimeError, match="by intent"):
                engine.step()
        hit = engine.running
        assert hit
        for request in hit:
            engine.abort(request.request_id)
        finish(engine)
        for request, tokens in zip(requests, expected, strict=True):
            assert request in hit or request.output_token_ids == tokens
        assert_empty(engine)


def _fail(*args: object, **kwargs: object) -> None:
    raise RuntimeError("by intent")


def test_repetition_penalty_as_transformers_computes_it(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("qwen2", 1)
    engine = build(checkpoint.path, chunked_prefill_size=8)
    (prompt,) = prompts(11, [12])
    penalised = RequestSampling(temperature=0.0, max_new_tokens=30, repetition_penalty=1.5)

    outputs = run(engine, [EngineRequest("p", prompt, penalised), greedy("q", prompt, 30)])

    assert outputs == [checkpoint.greedy(prompt, 30, repetition_penalty=1.5), checkpoint.greedy(prompt, 30)]
    assert outputs[0] != outputs[1]


def test_a_seed_fixes_the_tokens_in_any_company_and_with_either_engine(
    tiny_checkpoint: Make, build: Build
) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    engine = build(checkpoint.path, max_total_tokens=160, chunked_prefill_size=16)
    prompt, *others = prompts(12, [35, 30, 22, 9])
    sampling = RequestSampling(
        temperature=0.8, top_p=0.9, top_k=50, presence_penalty=0.5, seed=7, max_new_tokens=40
    )
    company = [EngineRequest(str(i), p, RequestSampling(max_new_tokens=40)) for i, p in enumerate(others)]
    ours = EngineRequest("a", prompt, sampling)
    omni = text_engine(checkpoint.path)
    omni.add(ours)
    while omni.has_work:
        omni.step()

    (alone,) = run(engine, [EngineRequest("a", prompt, sampling)])
    (*_, among) = run(engine, [*company, EngineRequest("a", prompt, sampling)])

    assert among == alone == ours.output_token_ids


def test_end_tokens_and_stop_strings(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama", 0)
    engine = build(checkpoint.path)
    (prompt,) = prompts(13, [9])
    expected = checkpoint.greedy(prompt, 20)
    end = next(token for token in expected[5:] if token not in expected[:5])
    cut = expected[: expected.index(end) + 1]
    stop = RequestSampling(temperature=0.0, max_new_tokens=20, stop_token_ids=(end,), ignore_eos=True)
    by_token = EngineRequest("a", prompt, stop)
    by_text = greedy("b", prompt, 20)
    by_text.detokenizer = _StopsAt(end)

    assert run(engine, [by_token, by_text]) == [cut, cut]
    assert [by_token.finish_reason, by_text.finish_reason] == ["stop", "stop"]


class _StopsAt:
    def __init__(self, token: int) -> None:
        self._token = token

    def feed(self, token_ids: list[int]) -> bool:
        return self._token in token_ids

    def finish(self) -> None:
        pass


def test_several_engines_take_turns_in_one_process(tiny_checkpoint: Make, build: Build) -> None:
    first, second = tiny_checkpoint("llama", 0), tiny_checkpoint("qwen3", 0)
    both = [
        build(first.path, max_running_requests=2, chunked_prefill_size=16),
        build(second.path, max_total_tokens=300, prefix_cache=False),
    ]
    many = prompts(15, [30, 20, 10])
    requests = [[greedy(str(i), prompt, 20) for i, prompt in enumerate(many)] for _ in both]
    for engine, group in zip(both, requests, strict=True):
        for request in group:
            engine.add(request)
    # As stages do: each in a thread of its own.
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(finish, both))
    for checkpoint, group in zip((first, second), requests, strict=True):
        assert [r.output_token_ids for r in group] == [checkpoint.greedy(prompt, 20) for prompt in many]
    for engine in both:
        assert_empty(engine)
