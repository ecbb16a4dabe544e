"""SGLang's steps launched ahead: what requests get is what they get step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_runs import finish
from sglang_engines import assert_empty, engines
from text_engines import greedy, prompts
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.engines.options import DecoderSpec
from sglang_omni.model_runner import draws

Make = Callable[..., TinyCheckpoint]
Build = Callable[..., Any]


@pytest.fixture
def build(tiny_checkpoint: Make) -> Iterator[Build]:
    spec = DecoderSpec.from_dir(tiny_checkpoint("qwen3", 5).path)
    with engines("sglang") as build_engine:
        yield lambda **options: build_engine(spec, chunked_prefill_size=16, **options)


def mixed(seed: int) -> list[EngineRequest]:
    """Requests of every kind: some whose choices need the tokens before them, and some that do not."""
    rng = random.Random(seed)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": seed},
        {"temperature": 0.7, "top_p": 0.8, "seed": seed},
        {"temperature": 0.7, "top_k": 20, "min_p": 0.05, "seed": seed},
        {"temperature": 0.8, "frequency_penalty": 0.7, "repetition_penalty": 1.2, "seed": seed},
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.0, "logit_bias": {"5": 4.0, "7": -9.0}},
        {"temperature": 0.5, "prompt_logprobs": 2, "logprobs": 1, "seed": seed},
    ]
    rng.shuffle(kinds)
    requests = []
    for number, (params, prompt) in enumerate(
        zip(kinds, prompts(seed, [rng.randrange(1, 45) for _ in kinds]), strict=True)
    ):
        sampling = RequestSampling.from_params({**params, "max_new_tokens": rng.randrange(1, 25)})
        requests.append(EngineRequest(f"{seed}-{number}", prompt, sampling))
    return requests


def outcome(request: EngineRequest) -> tuple[Any, ...]:
    scores = None if request.demands is None else request.demands.scores
    prompt = None if request.prompt_scores is None else request.prompt_scores.scores
    return request.output_token_ids, request.finish_reason, repr(scores), repr(prompt)


@pytest.mark.parametrize("seed", range(4))
def test_company_and_the_moment_of_joining_change_nothing(build: Build, seed: int) -> None:
    engine = build(overlap_schedule=True, max_running_requests=5, max_total_tokens=160)
    alone = []
    for request in mixed(seed):
        engine.add(request)
        finish(engine)
        alone.append(outcome(request)[:2])
    assert_empty(engine)
    engine.flush_cache()

    rng = random.Random(seed)
    together = mixed(seed)
    for request in together:
        engine.add(request)
        for _ in range(rng.randrange(4)):
            engine.step()
    finish(engine)

    assert [outcome(request)[:2] for request in together] == alone
    assert_empty(engine)


def test_scores_and_ends_are_those_of_steps_one_by_one(build: Build) -> None:
    outcomes = []
    for overlap in (False, True):
        engine = build(overlap_schedule=overlap)
        requests = [request for seed in range(2) for request in mixed(seed)]
        for request in requests:
            engine.add(request)
        finish(engine)
        outcomes.append([(request.output_token_ids, request.finish_reason) for request in requests])
        for request in requests:
            if request.sampling.logprobs is not None:
                assert request.demands is not None
                scored = [score.token for score in request.demands.scores]
                assert scored == request.output_token_ids
            if request.prompt_scores is not None:
                assert request.prompt_scores.complete
        assert_empty(engine)
    assert outcomes[0] == outcomes[1]


def test_a_step_with_corrected_tokens_is_launched_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that were not drawn among enough are inputs of the next step already when that is found out."""

    def drawn() -> list[EngineRequest]:
        sampling = [
            RequestSampling(temperature=0.9, top_p=0.97, seed=3, max_new_tokens=20),
            RequestSampling(temperature=3.0, min_p=0.01, seed=4, max_new_tokens=30),
            RequestSampling(temperature=0.5, top_k=3, seed=5, max_new_tokens=25),
            RequestSampling(temperature=0.0, max_new_tokens=30),
            RequestSampling(temperature=1.0, seed=6, max_new_tokens=10),
        ]
        return [
            EngineRequest(str(number), prompt, each)
            for number, (each, prompt) in enumerate(zip(sampling, prompts(7, [5, 40, 9, 20, 1]), strict=True))
        ]

    outcomes, again = [], 0
    for overlap, candidates in ((False, 512), (False, 2), (True, 2)):
        monkeypatch.setattr(draws, "CANDIDATES", candidates)
        engine = build(overlap_schedule=overlap)
        launch_again = engine.scheduler._launch_again

        def counted(launch_again: Callable[[], None] = launch_again) -> None:
            nonlocal again
            again += 1
            launch_again()

        monkeypatch.setattr(engine.scheduler, "_launch_again", counted)
        requests = drawn()
        for request in requests:
            engine.add(request)
            engine.step()
        finish(engine)
        outcomes.append([(request.output_token_ids, request.finish_reason) for request in requests])
        assert_empty(engine)
    assert again > 5
    assert outcomes[1] == outcomes[0]
    assert outcomes[2] == outcomes[0]


def test_a_step_is_launched_before_the_last_one_is_read(build: Build) -> None:
    engine = build(overlap_schedule=True)
    request = greedy("a", prompts(1, [5])[0], 6)
    engine.add(request)
    tokens = []
    while engine.has_work:
        engine.step()
        tokens.append((len(request.output_token_ids), len(engine.scheduler.result_queue)))
    # The last step launches nothing: it is known that the token which is read there is the last.
    assert tokens == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 0)]

    penalised = EngineRequest(
        "b", request.prompt_token_ids, RequestSampling(max_new_tokens=2, frequency_penalty=1.0)
    )
    engine.add(penalised)
    engine.step()
    assert (penalised.output_token_ids, len(engine.scheduler.result_queue)) == ([], 1)
    engine.step()
    # Read before the next was planned.
    assert (len(penalised.output_token_ids), len(engine.scheduler.result_queue)) == (1, 1)
    finish(engine)
    assert_empty(engine)


def test_what_ended_before_a_failed_step_is_not_lost(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build(overlap_schedule=True)
    short, long = greedy("short", prompts(1, [5])[0], 2), greedy("long", prompts(2, [5])[0], 50)
    penalised = EngineRequest(
        "p", prompts(3, [5])[0], RequestSampling(max_new_tokens=50, frequency_penalty=1.0)
    )
    for request in (short, long, penalised):
        engine.add(request)
    while len(short.output_token_ids) < 1:
        engine.step()
    assert engine.scheduler.result_queue
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "get_next_batch_to_run", _fail)
        # The step in flight, of which a request's next choice needs the tokens, is read before.
        with pytest.raises(RuntimeError, match="by intent"):
            engine.step()
    assert short.finish_reason == "length"
    for request in engine.running:
        engine.abort(request.request_id)
    assert engine.has_work
    assert engine.step() == [short]
    assert not engine.has_work
    assert_empty(engine)


def _fail(*args: object, **kwargs: object) -> None:
    raise RuntimeError("by intent")
