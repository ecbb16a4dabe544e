"""Log-probabilities of answers and prompts are transformers', with both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from engine_runs import finish, run
from sglang_engines import KINDS, assert_empty, engines, expect_short_answers
from text_engines import prompts
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.engines.options import DecoderSpec
from sglang_omni.model_runner.token_scores import TokenScore
from sglang_omni.proto import RequestError

CLOSE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> TinyCheckpoint:
    return tiny_checkpoint("qwen3", 4)


@pytest.fixture(params=KINDS)
def build(request: pytest.FixtureRequest, checkpoint: TinyCheckpoint) -> Iterator[Callable[..., Any]]:
    with engines(request.param) as build:
        yield lambda **options: build(DecoderSpec.from_dir(checkpoint.path), **options)


def scored(request_id: str, prompt: list[int], **sampling: Any) -> EngineRequest:
    return EngineRequest(request_id, prompt, RequestSampling(**{"max_new_tokens": 12, **sampling}))


def assert_scores(
    checkpoint: TinyCheckpoint, prompt: list[int], scores: list[TokenScore], start: int, num_top: int
) -> None:
    """
    Args:
        prompt: All tokens up to the last score's.
        start: The position of the first score's token.
    """
    with torch.no_grad():
        expected = checkpoint.model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    for position, score in enumerate(scores, start):
        assert score.token == prompt[position]
        if position == 0:
            assert (score.logprob, score.top) == (None, [])
            continue
        row = expected[position - 1]
        assert score.logprob == pytest.approx(row[score.token].item(), abs=CLOSE)
        values, ids = row.topk(num_top)
        assert [value for _, value in score.top] == pytest.approx(values.tolist(), abs=CLOSE)
        if num_top and (values[:-1] - values[1:] > CLOSE).all():
            assert [token for token, _ in score.top] == ids.tolist()


def assert_all_scores(checkpoint: TinyCheckpoint, request: EngineRequest) -> None:
    prompt, sampling = request.prompt_token_ids, request.sampling
    whole = prompt + request.output_token_ids
    if sampling.logprobs is not None:
        assert request.demands is not None
        assert len(request.demands.scores) == len(request.output_token_ids)
        assert_scores(checkpoint, whole, request.demands.scores, len(prompt), sampling.logprobs)
    if sampling.prompt_logprobs is not None:
        assert request.prompt_scores is not None
        assert len(request.prompt_scores.scores) == len(prompt)
        assert_scores(checkpoint, whole, request.prompt_scores.scores, 0, sampling.prompt_logprobs)


def test_answers_and_prompts_in_one_batch(build: Callable[..., Any], checkpoint: TinyCheckpoint) -> None:
    engine = build(chunked_prefill_size=16)
    many = prompts(1, [1, 2, 40, 17, 90, 5])
    requests = [
        scored("greedy", many[0], temperature=0.0, logprobs=0, prompt_logprobs=0),
        # What the model itself says, whatever the sampling makes of it.
        scored(
            "sampled",
            many[1],
            temperature=1.7,
            top_k=9,
            seed=1,
            repetition_penalty=1.5,
            logit_bias=((5, 8.0),),
            logprobs=5,
        ),
        scored("prompt", many[2], seed=2, prompt_logprobs=3),
        scored("plain", many[3], temperature=0.0),
        scored("both", many[4], seed=3, logprobs=20, prompt_logprobs=20),
        scored("short", many[5], seed=4, logprobs=1, prompt_logprobs=1, max_new_tokens=1),
    ]
    run(engine, requests)

    for request in requests:
        assert request.failure is None
        assert_all_scores(checkpoint, request)
    assert requests[3].output_token_ids == checkpoint.greedy(many[3], 12)
    assert requests[3].demands is None
    assert_empty(engine)


def test_a_cached_prompt_is_scored_too(build: Callable[..., Any], checkpoint: TinyCheckpoint) -> None:
    engine = build(chunked_prefill_size=16)
    (prompt,) = prompts(2, [50])
    run(engine, [scored("first", prompt, seed=1)])
    again = scored("again", prompt, seed=1, prompt_logprobs=2, logprobs=0)
    beside = scored("beside", prompt, seed=1)
    run(engine, [again, beside])

    assert_all_scores(checkpoint, again)
    assert again.cached_tokens == 0
    assert beside.cached_tokens == 49
    assert_empty(engine)


def test_scores_outlive_a_lost_cache(build: Callable[..., Any], checkpoint: TinyCheckpoint) -> None:
    engine = build(max_total_tokens=100, chunked_prefill_size=16)
    expect_short_answers(engine)
    requests = [
        scored(str(i), prompt, seed=i, logprobs=2, prompt_logprobs=1, max_new_tokens=50)
        for i, prompt in enumerate(prompts(4, [20, 25, 18, 22]))
    ]
    run(engine, requests)

    assert engine.stats()["num_retracted_requests_total"] > 0
    for request in requests:
        assert_all_scores(checkpoint, request)
    assert_empty(engine)


def test_an_aborted_request_leaves_nothing(build: Callable[..., Any]) -> None:
    engine = build(chunked_prefill_size=16)
    engine.add(scored("a", prompts(5, [60])[0], prompt_logprobs=1, logprobs=1))
    engine.step()
    engine.step()
    engine.abort("a")
    finish(engine)
    run(engine, [scored("b", [1, 2, 3])])
    assert_empty(engine)


def test_more_than_a_result_should_hold_is_refused(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_omni.engines.admission.MAX_PROMPT_LOGPROBS", 100)
    engine = build()
    engine.add(scored("fits", [1] * 20, prompt_logprobs=4))
    with pytest.raises(RequestError, match="more than 100 log-probabilities"):
        engine.add(scored("more", [1] * 21, prompt_logprobs=4))
    finish(engine)
