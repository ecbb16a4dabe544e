"""Both engines give the greedy tokens of transformers' ``generate``, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import finish, run
from sglang_engines import WAYS, assert_empty, engines, expect_short_answers
from text_engines import greedy, prompts, serve_random_traffic, text_engine
from tiny_checkpoints import SHAPES, SLIDING, VOCAB_SIZE, TinyCheckpoint, make_checkpoint

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.text import default_text_engine
from sglang_omni.proto import RequestError

Make = Callable[..., TinyCheckpoint]
DEVICES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]
# build(path, **options)
Build = Callable[..., Any]


def builder(way: str) -> Iterator[Build]:
    kind, chosen = WAYS[way]
    with engines(kind) as build:
        yield lambda path, **options: build(DecoderSpec.from_dir(path), **chosen, **options)


@pytest.fixture(params=WAYS)
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    yield from builder(request.param)


@pytest.fixture(params=["sglang", "overlap"])
def build_sglang(request: pytest.FixtureRequest) -> Iterator[Build]:
    yield from builder(request.param)


@pytest.mark.parametrize("shape", SHAPES)
def test_alone_in_a_batch_and_over_a_cached_prefix(tiny_checkpoint: Make, build: Build, shape: str) -> None:
    checkpoint = tiny_checkpoint(shape)
    engine = build(checkpoint.path, chunked_prefill_size=16)
    many = prompts(0, [1, 2, 5, 17, 40, 90])
    expected = [checkpoint.greedy(prompt, 12) for prompt in many]
    assert len({token for tokens in expected for token in tokens}) > 20, "the oracle's tokens should vary"

    alone = [run(engine, [greedy("a", prompt, 12)])[0] for prompt in many]
    engine.flush_cache()
    fresh = [greedy(str(i), prompt, 12) for i, prompt in enumerate(many)]
    together = run(engine, fresh)
    again = [greedy(str(i), prompt, 12) for i, prompt in enumerate(many)]

    assert alone == expected
    assert together == expected
    assert run(engine, again) == expected
    # The last token of a prompt is always computed: its logits are wanted.
    assert [request.cached_tokens for request in fresh] == [0] * 6
    assert [request.cached_tokens for request in again] == [0, 1, 4, 16, 39, 89]
    assert engine.stats()["max_batch_size"] == 6
    assert_empty(engine)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SLIDING)
def test_layers_with_a_sliding_window(tiny_checkpoint: Make, shape: str, device: str) -> None:
    """Prompts and answers shorter and longer than it; chunks that begin before, in and behind it."""
    checkpoint = tiny_checkpoint(shape)
    many = prompts(0, [1, 6, 8, 15, 17, 31, 90, 150])
    # The second half has the first one's beginning.
    many += [
        prompt[: len(prompt) // 2] + other for prompt, other in zip(many, prompts(1, [9] * 8), strict=True)
    ]
    expected = [checkpoint.greedy(prompt, 40) for prompt in many]
    for chunk in (7, 64, -1):
        engine = text_engine(
            checkpoint.path, device=device, chunked_prefill_size=chunk, page_size=4, max_total_tokens=4096
        )
        alone = [run(engine, [greedy("a", prompt, 40)])[0] for prompt in many[:8]]
        assert alone == expected[:8], chunk
        # Eight at once, over prefixes that are cached.
        fresh = [greedy(str(i), prompt, 40) for i, prompt in enumerate(many[8:])]
        assert run(engine, fresh) == expected[8:], chunk
        assert sum(request.cached_tokens for request in fresh) > 100
        assert_empty(engine)


def test_a_sliding_window_is_no_matter_for_sglang(tiny_checkpoint: Make, build_sglang: Build) -> None:
    path = tiny_checkpoint("qwen2-sliding").path
    with pytest.raises(
        ValueError, match=r"layers with a sliding window .* engine 'omni': leave --engine out"
    ):
        build_sglang(path)
    options = EngineOptions(device="cuda:0", dtype="bfloat16")
    assert default_text_engine(path, options) == "omni"
    with pytest.raises(ValueError, match="LoRA adapters, and engine 'omni', because it has layers with a"):
        default_text_engine(path, replace(options, lora_paths={"a": "b"}))


def test_scaled_positions_and_biases(tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "llama-biased", {**SHAPES["llama-rope3-untied"], "mlp_bias": False})
    checkpoint = make_checkpoint(tmp_path, "llama-biased", 0)
    (prompt,) = prompts(3, [100])

    assert run(build(tmp_path), [greedy("a", prompt, 30)]) == [checkpoint.greedy(prompt, 30)]


def test_prompts_in_chunks_beside_running_requests(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen2-untied", 3)
    engine = text_engine(
        checkpoint.path, page_size=8, max_running_requests=4, chunked_prefill_size=7, prefix_cache=False
    )
    many = prompts(3, [30, 100, 3, 64, 50, 1])
    expected = [checkpoint.greedy(prompt, 20) for prompt in many]
    requests = [greedy(str(i), prompt, 20) for i, prompt in enumerate(many)]

    # One joins every third step, while others are decoded.
    for request in requests:
        engine.add(request)
        for _ in range(3):
            engine.step()
    finish(engine)

    assert [request.output_token_ids for request in requests] == expected


@pytest.mark.parametrize("page_size", [1, 4])
def test_requests_put_out_of_a_full_pool_come_back(
    tiny_checkpoint: Make, build: Build, page_size: int
) -> None:
    checkpoint = tiny_checkpoint("qwen3", 4)
    engine = build(checkpoint.path, max_total_tokens=100, page_size=page_size, chunked_prefill_size=16)
    expect_short_answers(engine)
    many = prompts(4, [20, 25, 18, 22])
    expected = [checkpoint.greedy(prompt, 50) for prompt in many]

    for _ in range(2):
        requests = [greedy(str(i), prompt, 50) for i, prompt in enumerate(many)]
        assert run(engine, requests) == expected
        assert_empty(engine)
    assert engine.stats()["num_retracted_requests_total"] > 0
    assert all(request.cached_tokens % page_size == 0 for request in requests)


def test_what_the_pool_cannot_hold_is_given_up(
    tiny_checkpoint: Make, build_sglang: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_sglang(tiny_checkpoint().path)
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


@pytest.mark.parametrize(
    ("options", "length"),
    [({"max_total_tokens": 40}, 25), ({"max_total_tokens": 40, "page_size": 4}, 25), ({}, 240)],
    ids=["pool", "pool of pages", "context"],
)
def test_one_request_may_fill_the_pool_or_the_context(
    tiny_checkpoint: Make, build: Build, options: dict[str, int], length: int
) -> None:
    checkpoint = tiny_checkpoint()
    engine = build(checkpoint.path, **options)
    (prompt,) = prompts(5, [length])
    request = greedy("a", prompt, None)

    # 40 or 256 positions, and the last token needs none.
    assert run(engine, [request]) == [checkpoint.greedy(prompt, 16)]
    assert request.finish_reason == "length"
    assert_empty(engine)


def test_a_cached_prefix_gives_the_same_tokens(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama-rope3-untied", 6)
    engine = build(checkpoint.path, page_size=4)
    common, first, second, third = prompts(6, [30, 7, 9, 1])
    run(engine, [greedy("first", common + first, 20)])

    requests = [greedy("second", common + second, 20), greedy("third", common + third, 20)]
    again = greedy("again", common + first, 20)
    assert run(engine, requests) == [
        checkpoint.greedy(common + second, 20),
        checkpoint.greedy(common + third, 20),
    ]
    assert run(engine, [again]) == [checkpoint.greedy(common + first, 20)]
    # The common 30 tokens fill 7 pages of 4; all 37 tokens fill 9.
    assert [request.cached_tokens for request in (*requests, again)] == [28, 28, 36]


@pytest.mark.parametrize(("page_size", "cached"), [(1, 29), (4, 28)])
def test_a_follow_up_finds_the_answer_in_the_cache(
    tiny_checkpoint: Make, build: Build, page_size: int, cached: int
) -> None:
    checkpoint = tiny_checkpoint("qwen2", 7)
    engine = build(checkpoint.path, page_size=page_size)
    question, follow_up = prompts(7, [10, 5])
    (answer,) = run(engine, [greedy("1", question, 20)])
    second = greedy("2", question + answer + follow_up, 10)

    assert run(engine, [second]) == [checkpoint.greedy(question + answer + follow_up, 10)]
    # The answer's last token was never fed back.
    assert second.cached_tokens == cached


def test_what_cannot_be_shared_is_not(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint()
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


def test_an_overfull_prefix_cache_gives_way(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("qwen3-tied", 8)
    engine = text_engine(checkpoint.path, page_size=4, max_total_tokens=100)
    many = prompts(8, [40, 45, 38, 50, 40])
    many += many[:2]

    outputs = [run(engine, [greedy("a", prompt, 30)])[0] for prompt in many]

    assert outputs == [checkpoint.greedy(prompt, 30) for prompt in many]


@pytest.mark.parametrize("options", [{"max_total_tokens": 100}, {"context_length": 101}])
def test_a_prompt_that_can_never_run_is_refused(
    tiny_checkpoint: Make, build: Build, options: dict[str, int]
) -> None:
    engine = build(tiny_checkpoint().path, **options)
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
    checkpoint = tiny_checkpoint()
    engine = build(checkpoint.path, chunked_prefill_size=16, max_running_requests=3)
    long, *others = prompts(8, [50, 12, 9, 7])
    for steps in range(8):
        kept = greedy("kept", others[0], 9)
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
        assert engine.stats()["kv_used_tokens"] <= len(others[0]) + 9
        finish(engine)

        assert kept.output_token_ids == checkpoint.greedy(others[0], 9), steps
        assert_empty(engine)
        engine.flush_cache()


def test_random_traffic_with_aborts(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint("llama", 9)
    engine = build(
        checkpoint.path, max_total_tokens=160, max_running_requests=5, chunked_prefill_size=16, page_size=4
    )
    serve_random_traffic(engine, checkpoint)
    assert_empty(engine)


def test_a_failed_step_takes_its_requests_and_no_more(
    tiny_checkpoint: Make, build_sglang: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_checkpoint()
    engine = build_sglang(checkpoint.path, chunked_prefill_size=16, max_running_requests=2)
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


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "presence_penalty": 0.5},
        {"temperature": 1.3, "min_p": 0.02, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    ],
)
def test_a_seed_fixes_the_tokens_in_any_company_and_with_either_engine(
    tiny_checkpoint: Make, params: dict[str, float]
) -> None:
    spec = DecoderSpec.from_dir(tiny_checkpoint().path)
    prompt, *others = prompts(12, [35, 30, 22, 9])
    seeded, other_seed = (
        RequestSampling.from_params({**params, "seed": seed, "max_new_tokens": 25}) for seed in (7, 8)
    )
    answers = []
    for kind, chosen in WAYS.values():
        with engines(kind) as build:
            engine = build(spec, max_total_tokens=160, chunked_prefill_size=16, **chosen)
            (alone,) = run(engine, [EngineRequest("a", prompt, seeded)])
            company = [
                EngineRequest(str(i), p, RequestSampling(max_new_tokens=25)) for i, p in enumerate(others)
            ]
            (*_, among) = run(engine, [*company, EngineRequest("a", prompt, seeded)])
            (different,) = run(engine, [EngineRequest("a", prompt, other_seed)])
        assert different != alone
        answers += [alone, among]
    assert answers == [answers[0]] * 2 * len(WAYS)


def test_end_tokens_and_stop_strings(tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint()
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


def test_the_models_own_end_token(tmp_path: Path, tiny_checkpoint: Make, build: Build) -> None:
    checkpoint = tiny_checkpoint()
    (prompt,) = prompts(13, [9])
    expected = checkpoint.greedy(prompt, 20)
    end = expected[6]
    for file in checkpoint.path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{end}, 198]}}')
    ignoring = RequestSampling(temperature=0.0, max_new_tokens=20, ignore_eos=True)

    outputs = run(build(tmp_path), [greedy("a", prompt, 20), EngineRequest("b", prompt, ignoring)])

    assert outputs == [expected[: expected.index(end) + 1], expected]


def test_several_engines_take_turns_in_one_process(tiny_checkpoint: Make, build_sglang: Build) -> None:
    first, second = tiny_checkpoint("llama"), tiny_checkpoint("qwen3")
    both = [
        build_sglang(first.path, max_running_requests=2, chunked_prefill_size=16),
        build_sglang(second.path, max_total_tokens=300, prefix_cache=False),
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


@pytest.mark.parametrize("option", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}])
def test_what_only_sglang_has(tiny_checkpoint: Make, option: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is for engine 'sglang' on a GPU; engine 'omni' does without"):
        text_engine(tiny_checkpoint().path, **option)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ["llama", "qwen3", "qwen3moe"])
def test_float32_gives_the_same_tokens_on_every_device(
    tiny_checkpoint: Make, shape: str, device: str
) -> None:
    checkpoint = tiny_checkpoint(shape)
    engine = text_engine(checkpoint.path, device=device, chunked_prefill_size=16)
    many = prompts(16, [1, 9, 40])
    for _ in range(2):
        answers = run(engine, [greedy(str(i), prompt, 12) for i, prompt in enumerate(many)])
        assert answers == [checkpoint.greedy(prompt, 12) for prompt in many]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ["qwen3", "qwen3moe"])
def test_bfloat16_is_close_to_transformers(tiny_checkpoint: Make, shape: str, device: str) -> None:
    checkpoint = tiny_checkpoint(shape)
    engine = text_engine(checkpoint.path, dtype="bfloat16", device=device)
    (prompt,) = prompts(15, [20])
    engine.add(greedy("a", prompt, 1))
    step = engine.builder.build(engine.scheduler.schedule())
    with torch.inference_mode():
        hidden = engine.runner.forward(step.forward, engine.runner.input_rows(step.forward))
        ours = engine.runner.model.logits(hidden).cpu()
        exact = checkpoint.model(torch.tensor([prompt])).logits[0]

    assert engine.runner.model.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits; a wrong layer would leave the logits unrelated.
    assert torch.nn.functional.cosine_similarity(ours, exact).min() > 0.99
