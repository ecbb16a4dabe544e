"""The talker on SGLang's scheduler: transformers' codes, with late text, and little room for KV."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from engine_runs import MAX_STEPS, finish, run
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user
from sglang_engines import assert_empty, engines, expect_short_answers
from talker_oracle import Spoken, spoken

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import talker_decoder
from sglang_omni.models.qwen3_omni.components.talker_state import TalkerState
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy

CONVERSATIONS = [
    ([user("Tell me about the sea.")], 1.05),
    ([user("Hello there."), {"role": "assistant", "content": "Good morning."}, user("Sing.")], 1.5),
    ([user("Look.", image_part(picture(1)), audio_part(sound(2)), "What is it?")], 1.05),
    ([user("Count to ten.")], 1.5),
]


class Case(NamedTuple):
    checkpoint: Qwen3OmniCheckpoint
    spec: DecoderSpec
    references: list[Spoken]

    def requests(self, *, text_is_there: bool = True) -> list[EngineRequest]:
        return [
            EngineRequest(
                str(index),
                [0] * reference.prompt(self.checkpoint).num_rows,
                RequestSampling(
                    temperature=0.0,
                    max_new_tokens=reference.max_new_tokens,
                    repetition_penalty=reference.penalty,
                ),
                state=reference.state(self.checkpoint, text_is_there=text_is_there),
                positions=reference.positions,
                cacheable=False,
            )
            for index, reference in enumerate(self.references)
        ]


@pytest.fixture(scope="module", params=[("deep", 2), ("narrow", 3)], ids=lambda p: p[0])
def case(request: pytest.FixtureRequest, qwen3_omni: Callable[..., Oracle]) -> Case:
    shape, seed = request.param
    oracle = qwen3_omni(seed=seed, shape=shape)
    checkpoint = Qwen3OmniCheckpoint.from_dir(oracle.path)
    strategy = Qwen3TalkerStrategy.from_checkpoint(checkpoint, torch.float32)
    spec = dataclasses.replace(
        talker_decoder(checkpoint, strategy), suppress_token_ids=checkpoint.require_talker().suppressed
    )
    references = [
        spoken(oracle, messages, max_tokens=8, max_new_tokens=16, penalty=penalty)
        for messages, penalty in CONVERSATIONS
    ]
    return Case(checkpoint, spec, references)


def state_of(request: EngineRequest) -> TalkerState:
    assert isinstance(request.state, TalkerState)
    return request.state


def assert_spoken(requests: Sequence[EngineRequest], references: Sequence[Spoken]) -> None:
    for request, reference in zip(requests, references, strict=True):
        assert request.output_token_ids == reference.first_codes
        assert torch.stack(state_of(request).frames).tolist() == reference.codes.tolist()


@pytest.mark.parametrize("chunk", [512, 16])
def test_alone_and_together(case: Case, chunk: int) -> None:
    with engines() as build:
        engine = build(case.spec, chunked_prefill_size=chunk)
        alone = case.requests()
        for request in alone:
            run(engine, [request])
        assert_spoken(alone, case.references)
        together = case.requests()
        run(engine, together)
        assert_spoken(together, case.references)
        # Placeholders are alike in all of them, and nothing may be shared.
        assert [request.cached_tokens for request in alone + together] == [0] * len(alone + together)
        assert_empty(engine)


def test_text_that_comes_late(case: Case) -> None:
    rng = random.Random(1)
    with engines() as build:
        engine = build(case.spec, chunked_prefill_size=16)
        requests = case.requests(text_is_there=False)
        for request in requests:
            engine.add(request)
        assert not engine.has_work
        held = 0
        left = [list(reference.token_ids) for reference in case.references]
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
        assert_spoken(requests, case.references)
        assert held > 0
        assert_empty(engine)


def test_those_that_wait_give_up_their_kv_first(case: Case) -> None:
    rows = [reference.prompt(case.checkpoint).num_rows for reference in case.references]
    with engines() as build:
        engine = build(case.spec, max_total_tokens=sum(rows) + 20)
        requests = case.requests()
        waiting = state_of(requests[0])
        waiting.text_ended = False
        waiting._text_ids = list(case.references[0].token_ids[:3])
        for request in requests:
            engine.add(request)
            expect_short_answers(engine)
            engine.step()
        finish(engine)
        assert engine.stats()["num_retracted_requests_total"] > 0
        assert [request.finish_reason is None for request in requests] == [True, False, False, False]
        assert engine.stats()["kv_used_tokens"] == 0, "the one that waits was put out"
        waiting.feed(case.references[0].token_ids[3:])
        waiting.end_text()
        finish(engine)
        assert_spoken(requests, case.references)
        assert_empty(engine)


def test_a_held_request_can_be_aborted(case: Case) -> None:
    with engines() as build:
        engine = build(case.spec)
        first, second, *_ = case.requests(text_is_there=False)
        for request, reference in zip((first, second), case.references, strict=False):
            state_of(request).feed(reference.token_ids[:3])
            engine.add(request)
        finish(engine)
        assert [len(engine.running), first.finish_reason, second.finish_reason] == [2, None, None]
        used = engine.stats()["kv_used_tokens"]
        assert engine.abort("0") is first
        assert engine.stats()["kv_used_tokens"] < used
        assert not engine.has_work
        state_of(second).feed(case.references[1].token_ids[3:])
        state_of(second).end_text()
        finish(engine)
        assert_spoken([second], case.references[1:2])
        assert_empty(engine)
