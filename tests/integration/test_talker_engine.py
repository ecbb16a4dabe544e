"""The talker on both engines: every code of every group as transformers' talker, whatever the batch holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from engine_runs import MAX_STEPS, finish, run
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user
from sglang_engines import assert_empty, engines, expect_short_answers
from talker_oracle import Spoken, spoken

from sglang_omni.engines.request import EngineRequest
from sglang_omni.engines.warm_up import warm_up
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import talker_decoder
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy
from sglang_omni.models.qwen3_omni.talker import Qwen3Talker

CONVERSATIONS = [
    [user("Tell me about the sea.")],
    [
        user("Look.", image_part(picture(1))),
        {"role": "assistant", "content": "A blob."},
        user(audio_part(sound(2)), "And this, with", image_part(picture(3, 64, 64))),
    ],
    [user("Count to nine, slowly and in a low voice, then stop for a while and start over.")],
    [user("And?", audio_part(sound(4, 0.5)))],
]


@dataclass
class Talker:
    """A checkpoint on one kind of engine, and what transformers' talker says to ``CONVERSATIONS``."""

    checkpoint: Qwen3OmniCheckpoint
    spoken: list[Spoken]
    # engine(**options), with the fields of EngineOptions
    engine: Callable[..., Any]

    def requests(self, *, text_is_there: bool = True) -> list[EngineRequest]:
        return [self.request(index, text_is_there=text_is_there) for index in range(len(self.spoken))]

    def request(self, index: int, *, text_is_there: bool = True) -> EngineRequest:
        reference = self.spoken[index]
        state = reference.state(self.checkpoint, text_is_there=text_is_there)
        return EngineRequest(
            str(index),
            state.prompt.token_ids,
            RequestSampling(
                temperature=0.0, repetition_penalty=reference.penalty, max_new_tokens=reference.max_new_tokens
            ),
            state=state,
            positions=reference.positions,
            cacheable=False,
        )

    def check(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            reference = self.spoken[int(request.request_id)]
            assert request.output_token_ids == reference.first_codes
            assert [frame.tolist() for frame in state_of(request).frames] == reference.codes.tolist()


def state_of(request: EngineRequest) -> Qwen3TalkerState:
    assert isinstance(request.state, Qwen3TalkerState)
    return request.state


@pytest.fixture(scope="module")
def answers(qwen3_omni: Callable[..., Oracle]) -> Callable[..., list[Spoken]]:
    @cache
    def of(shape: str, seed: int) -> list[Spoken]:
        oracle = qwen3_omni(seed=seed, shape=shape)
        # Random codes seldom repeat: only a strong penalty changes them.
        return [
            spoken(
                oracle, messages, max_tokens=3 + 3 * index, max_new_tokens=16, penalty=(1.05, 1.5)[index % 2]
            )
            for index, messages in enumerate(CONVERSATIONS)
        ]

    return of


@pytest.fixture(
    scope="module",
    params=[
        ("omni", "default", 0),
        ("omni", "deep", 2),
        ("omni", "narrow", 3),
        ("sglang", "deep", 2),
        ("sglang", "narrow", 3),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def talker(
    request: pytest.FixtureRequest, qwen3_omni: Callable[..., Oracle], answers: Any
) -> Iterator[Talker]:
    kind, shape, seed = request.param
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni(seed=seed, shape=shape).path)
    strategy = Qwen3TalkerStrategy.from_checkpoint(checkpoint, torch.float32)
    with engines(kind) as build:
        spec = talker_decoder(checkpoint, strategy)
        yield Talker(checkpoint, answers(shape, seed), lambda **options: build(spec, **options))


@pytest.mark.parametrize("chunk", [512, 16])
def test_alone_and_together(talker: Talker, chunk: int) -> None:
    engine = talker.engine(chunked_prefill_size=chunk)
    alone = talker.requests()
    for request in alone:
        run(engine, [request])
    together = talker.requests()
    run(engine, together)
    talker.check(alone + together)
    # Placeholders are alike in all of them, and nothing may be shared.
    assert {request.cached_tokens for request in alone + together} == {0}
    assert_empty(engine)


def test_nothing_is_left_of_a_warm_up(talker: Talker) -> None:
    engine = talker.engine()
    before = engine.stats()
    stage = Qwen3Talker(talker.checkpoint)
    (request,) = stage.warm_up_requests()
    warm_up(engine, [request])
    assert request.output_token_ids
    assert engine.stats() == before
    assert_empty(engine)
    requests = talker.requests()
    for each in requests:
        engine.add(each)
    finish(engine)
    talker.check(requests)


def test_out_of_step_and_beside_an_abort(talker: Talker) -> None:
    engine = talker.engine(chunked_prefill_size=16)
    requests = talker.requests()
    for request in requests:
        engine.add(request)
        for _ in range(3):
            engine.step()
    engine.abort(requests[1].request_id)
    requests[1] = talker.request(1)
    run(engine, requests[1:2])
    talker.check(requests)
    assert_empty(engine)


def test_text_that_comes_late_is_waited_for(talker: Talker) -> None:
    rng = random.Random(1)
    engine = talker.engine(chunked_prefill_size=16)
    requests = talker.requests(text_is_there=False)
    for request in requests:
        engine.add(request)
    assert not engine.has_work
    held = 0
    left = [list(reference.token_ids) for reference in talker.spoken]
    for _ in range(MAX_STEPS):
        held += bool(engine.running) and not engine.has_work
        if all(request.finish_reason for request in requests):
            break
        index = rng.randrange(len(requests))
        if left[index]:
            state_of(requests[index]).feed([left[index].pop(0)])
        elif not state_of(requests[index]).text_ended:
            state_of(requests[index]).end_text()
        if engine.has_work:
            before = engine.stats()["num_steps_total"]
            engine.step()
            assert engine.stats()["num_steps_total"] == before + 1, "has_work counts only what can run"
    talker.check(requests)
    assert held > 3
    assert_empty(engine)


def test_those_that_wait_give_up_their_kv_first(talker: Talker) -> None:
    rows = [reference.prompt(talker.checkpoint).num_rows for reference in talker.spoken]
    engine = talker.engine(max_total_tokens=sum(rows) + 20)
    requests = talker.requests()
    waiting = state_of(requests[0])
    waiting.text_ended = False
    waiting._text_ids = list(talker.spoken[0].token_ids[:2])
    for request in requests:
        engine.add(request)
        expect_short_answers(engine)
        engine.step()
    finish(engine)
    assert engine.stats()["num_retracted_requests_total"] > 0
    assert [request.finish_reason is None for request in requests] == [True, False, False, False]
    assert engine.stats()["kv_used_tokens"] == 0, "the one that waits was put out"
    waiting.feed(talker.spoken[0].token_ids[2:])
    waiting.end_text()
    finish(engine)
    talker.check(requests)
    assert_empty(engine)


def test_a_held_request_can_be_aborted(talker: Talker) -> None:
    engine = talker.engine()
    first, second, *_ = talker.requests(text_is_there=False)
    for request, reference in zip((first, second), talker.spoken, strict=False):
        state_of(request).feed(reference.token_ids[:2])
        engine.add(request)
    finish(engine)
    assert [len(engine.running), first.finish_reason, second.finish_reason] == [2, None, None]
    used = engine.stats()["kv_used_tokens"]
    assert engine.abort("0") is first
    assert engine.stats()["kv_used_tokens"] < used
    assert not engine.has_work
    state_of(second).feed(talker.spoken[1].token_ids[2:])
    state_of(second).end_text()
    finish(engine)
    talker.check([second])
    assert_empty(engine)
