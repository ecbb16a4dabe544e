"""The thinker on both engines gives transformers' tokens and hidden states for every kind of prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from engine_runs import finish, run
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user, video, video_part
from sglang_engines import KINDS, assert_empty, engines
from thinker_requests import ThinkerPrompt

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.engines.options import EngineKind
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder

MAX_TOKENS = 14
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [user("Name three rivers and the seas that they flow into.")],
    "image": [user(image_part(picture(1)), "What is this?")],
    "audio": [user("Listen:", audio_part(sound(2, 1.3)), "What do you hear?")],
    "image and audio": [user(image_part(picture(3, 80, 140)), audio_part(sound(4, 0.7)), "And together?")],
    "video": [user(video_part(video(5, frames=4, width=64)), "What happens?")],
    "several images": [user(image_part(picture(6)), "or", image_part(picture(7, 64, 64)), "?")],
    "image and video": [user(image_part(picture(5)), video_part(video(6, frames=2, width=64)))],
    "turns": [
        {"role": "system", "content": "You are terse."},
        user(image_part(picture(8, 96, 64)), "Look."),
        {"role": "assistant", "content": "I see blobs."},
        user(audio_part(sound(9, 0.5)), image_part(picture(10, 64, 96)), "And now?"),
        {"role": "assistant", "content": "A hum."},
        user("Why?"),
    ],
}
Prompts = dict[str, ThinkerPrompt]
# prompts_of(shape, seed)
PromptsOf = Callable[[str, int], Prompts]
# build(shape, seed, **options)
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def prompts_of(qwen3_omni: Callable[..., Oracle]) -> PromptsOf:
    @cache
    def of(shape: str, seed: int) -> Prompts:
        oracle = qwen3_omni(seed=seed, shape=shape)
        return {
            name: ThinkerPrompt.of(oracle, messages, max_tokens=MAX_TOKENS)
            for name, messages in CONVERSATIONS.items()
        }

    return of


def builder(kind: EngineKind, qwen3_omni: Callable[..., Oracle]) -> Iterator[Build]:
    with engines(kind) as build:

        def build_shape(shape: str, seed: int, **options: Any) -> Any:
            checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni(seed=seed, shape=shape).path)
            return build(
                thinker_decoder(checkpoint, for_speech=True), **{"max_total_tokens": 4096, **options}
            )

        yield build_shape


@pytest.fixture
def build_omni(qwen3_omni: Callable[..., Oracle]) -> Iterator[Build]:
    yield from builder("omni", qwen3_omni)


@pytest.fixture(params=KINDS)
def build(request: pytest.FixtureRequest, qwen3_omni: Callable[..., Oracle]) -> Iterator[Build]:
    yield from builder(request.param, qwen3_omni)


def test_eight_answers_without_a_limit_run_together(build: Build) -> None:
    """Each may fill the context, and none takes more room than it needs: the pool is that of a stage."""
    engine = build("default", 0, max_total_tokens=32_768)
    chance = Random(0)
    requests = [
        EngineRequest(str(index), [chance.randrange(300) for _ in range(300)], RequestSampling(seed=index))
        for index in range(8)
    ]
    for request in requests:
        engine.add(request)
        assert request.max_new_tokens == 32_768 - 300
    while not all(request.output_token_ids for request in requests):
        assert engine.has_work
        engine.step()
    stats = engine.stats()
    assert stats["num_queue_reqs"] == stats["num_retracted_requests_total"] == 0
    for request in requests:
        engine.abort(request.request_id)


def requests_of(prompts: Prompts, **options: Any) -> list[EngineRequest]:
    return [prompt.request(name, **options) for name, prompt in prompts.items()]


def check(request: EngineRequest, prompt: ThinkerPrompt) -> None:
    assert request.output_token_ids == prompt.token_ids, request.request_id
    assert isinstance(request.state, ThinkerState)
    assert request.state.media_hidden is not None
    torch.testing.assert_close(request.state.media_hidden, prompt.hidden, rtol=1e-4, atol=1e-4)


def check_all(requests: list[EngineRequest], prompts: Prompts) -> None:
    for request, prompt in zip(requests, prompts.values(), strict=True):
        check(request, prompt)


@pytest.mark.parametrize(
    ("shape", "seed", "chunk", "page_size"),
    [("default", 0, 512, 4), ("deep", 2, 16, 4), ("narrow", 3, 512, 1)],
)
def test_alone_together_and_over_cached_media(
    build: Build, prompts_of: PromptsOf, shape: str, seed: int, chunk: int, page_size: int
) -> None:
    prompts = prompts_of(shape, seed)
    assert len({token for prompt in prompts.values() for token in prompt.token_ids}) > 10
    engine = build(shape, seed, chunked_prefill_size=chunk, page_size=page_size)
    together = requests_of(prompts)
    run(engine, together)
    check_all(together, prompts)
    # In chunks, the first answers end before the last prompts are computed.
    assert engine.stats()["max_batch_size"] >= (len(prompts) if chunk == 512 else 4)

    # What was tapped for others is found with their keys and values.
    again = requests_of(prompts)
    run(engine, again)
    check_all(again, prompts)
    for request in again:
        assert request.cached_tokens == (len(request.prompt_token_ids) - 1) // page_size * page_size

    engine.flush_cache()
    alone = requests_of(prompts)
    for request in alone:
        run(engine, [request])
    check_all(alone, prompts)
    assert_empty(engine)


@pytest.mark.parametrize("chunk", [16, 512])
def test_a_prefix_that_was_cached_for_text_alone_gives_hidden_states(
    build_omni: Build, prompts_of: PromptsOf, chunk: int
) -> None:
    prompts = prompts_of("default", 0)
    engine = build_omni("default", 0, chunked_prefill_size=chunk)
    run(engine, requests_of(prompts, wants_hidden=False))
    again = requests_of(prompts)
    run(engine, again)
    check_all(again, prompts)


def test_chunks_that_cut_media(build_omni: Build, prompts_of: PromptsOf) -> None:
    prompts = prompts_of("deep", 2)
    engine = build_omni("deep", 2, chunked_prefill_size=16, prefix_cache=False)
    requests = requests_of(prompts)

    # They join while others are decoded: one every third step.
    for request in requests:
        engine.add(request)
        for _ in range(3):
            engine.step()
    finish(engine)

    check_all(requests, prompts)


def test_other_media_in_the_same_place_are_not_taken_for_cached(
    qwen3_omni: Callable[..., Oracle], build: Build
) -> None:
    first, second = (
        ThinkerPrompt.of(qwen3_omni(), [user(image_part(picture(seed, 96, 96)), "Which one?")], max_tokens=6)
        for seed in (20, 21)
    )
    assert first.prompt_token_ids == second.prompt_token_ids
    assert not torch.equal(first.hidden, second.hidden)
    engine = build("default", 0)

    cached = []
    for prompt in (first, second, first):
        request = prompt.request("a")
        run(engine, [request])
        check(request, prompt)
        cached.append(request.cached_tokens)
    assert cached == [0, int(first.media_positions[0]), len(first.prompt_token_ids) - 1]


@pytest.mark.parametrize(
    ("kind", "shape", "seed", "options"),
    [
        ("omni", "default", 1, {"max_total_tokens": 120, "chunked_prefill_size": 32, "page_size": 4}),
        ("sglang", "deep", 2, {"max_total_tokens": 2048, "chunked_prefill_size": 16}),
        ("sglang", "narrow", 3, {"max_total_tokens": 2048, "chunked_prefill_size": 16}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_requests_put_out_of_a_full_pool_come_back(
    qwen3_omni: Callable[..., Oracle],
    prompts_of: PromptsOf,
    kind: EngineKind,
    shape: str,
    seed: int,
    options: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitting = {
        name: prompt
        for name, prompt in prompts_of(shape, seed).items()
        if len(prompt.prompt_token_ids) + MAX_TOKENS <= options["max_total_tokens"]
    }
    assert len(fitting) > 3
    prompts = {
        f"{name}-{turn}": fitting[name] for turn in range(3 if kind == "omni" else 1) for name in fitting
    }
    for build in builder(kind, qwen3_omni):
        # Without the prefix cache, all that is taken is computed again.
        engine = build(shape, seed, prefix_cache=False, **options)
        if kind == "sglang":
            # SGLang takes KV away from some requests every three steps, without need.
            monkeypatch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT", True)
        requests = requests_of(prompts)
        run(engine, requests)
        check_all(requests, prompts)
        assert engine.stats()["num_retracted_requests_total"] > 2
        assert_empty(engine)


class Hesitant:
    """A state whose inputs arrive as the test lets them."""

    def __init__(self, ready: int) -> None:
        self.ready = ready

    def is_ready(self, num_tokens: int) -> bool:
        return num_tokens <= self.ready


def hesitant(prompt: ThinkerPrompt, name: str, ready: int) -> tuple[EngineRequest, Hesitant]:
    state = Hesitant(ready)
    sampling = RequestSampling(temperature=0.0, max_new_tokens=MAX_TOKENS)
    return EngineRequest(name, prompt.prompt_token_ids, sampling, state=state), state


@pytest.fixture
def text(prompts_of: PromptsOf) -> ThinkerPrompt:
    return prompts_of("default", 0)["text"]


def test_requests_wait_for_their_inputs(build_omni: Build, text: ThinkerPrompt) -> None:
    length = len(text.prompt_token_ids)
    engine = build_omni("default", 0)
    late, state = hesitant(text, "late", length - 1)
    engine.add(late)
    assert not engine.has_work
    assert engine.step() == []

    state.ready = length + 3
    other, _ = hesitant(text, "other", 10_000)
    run(engine, [other])
    assert other.output_token_ids == text.token_ids
    assert late.output_token_ids == text.token_ids[:4], "it is held where its fifth token's input is missing"
    assert engine.stats()["num_running_reqs"] == 1

    state.ready = 10_000
    finish(engine)
    assert late.output_token_ids == text.token_ids


def test_held_requests_make_room_for_those_that_run(build_omni: Build, text: ThinkerPrompt) -> None:
    length = len(text.prompt_token_ids)
    engine = build_omni("default", 0, max_total_tokens=2 * length + 16, prefix_cache=False)
    held, state = hesitant(text, "held", length)
    run(engine, [held])
    runs, _ = hesitant(text, "runs", 10_000)
    third, _ = hesitant(text, "third", 10_000)
    engine.add(runs)
    engine.step()
    engine.add(third)
    while runs.finish_reason is None:
        assert engine.has_work
        engine.step()

    assert held.num_preempted == 0 or not held.pages
    state.ready = 10_000
    finish(engine)
    assert [request.output_token_ids for request in (held, runs, third)] == [text.token_ids] * 3


def test_what_fits_beside_no_held_request_waits_with_it(build_omni: Build, text: ThinkerPrompt) -> None:
    length = len(text.prompt_token_ids)
    engine = build_omni("default", 0, max_total_tokens=length + 20, prefix_cache=False)
    held, state = hesitant(text, "held", length)
    run(engine, [held])
    ready, _ = hesitant(text, "ready", 10_000)
    engine.add(ready)
    assert not engine.has_work, "a scheduler would spin"

    state.ready = 10_000
    finish(engine)
    assert held.output_token_ids == ready.output_token_ids == text.token_ids


def test_log_probabilities_of_prompts_with_media(build: Build, prompts_of: PromptsOf) -> None:
    prompts = prompts_of("default", 0)
    engine = build("default", 0, chunked_prefill_size=64)
    run(engine, requests_of(prompts))
    scored = [
        EngineRequest(
            name,
            prompt.prompt_token_ids,
            RequestSampling(temperature=0.0, max_new_tokens=2, logprobs=0, prompt_logprobs=1),
            state=prompt.request(name).state,
            positions=prompt.positions,
            key_token_ids=prompt.key_token_ids,
        )
        for name, prompt in prompts.items()
    ]
    run(engine, scored)

    for request, prompt in zip(scored, prompts.values(), strict=True):
        assert request.prompt_scores is not None
        assert request.demands is not None
        first, *scores = request.prompt_scores.scores
        assert (first.token, first.logprob) == (prompt.prompt_token_ids[0], None)
        assert [score.token for score in scores] == prompt.prompt_token_ids[1:]
        expected = prompt.logprobs[torch.arange(len(scores)), prompt.prompt_token_ids[1:]]
        assert [score.logprob for score in scores] == pytest.approx(expected.tolist(), abs=1e-4)
        answer = request.demands.scores[0]
        assert answer.logprob == pytest.approx(prompt.logprobs[-1, answer.token].item(), abs=1e-4)
