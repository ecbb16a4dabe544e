"""The talker on an engine: every code of every group as transformers' talker, whatever the batch holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from engine_runs import finish, run
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user
from talker_oracle import Spoken, spoken

from sglang_omni.engines.base import Engine
from sglang_omni.engines.build import build_engine
from sglang_omni.engines.options import EngineKind, EngineOptions
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import talker_decoder
from sglang_omni.models.qwen3_omni.components.talker_state import TalkerState
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy

CHECKPOINTS = [("default", 0), ("deep", 2), ("narrow", 3)]
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


class Talker(NamedTuple):
    checkpoint: Qwen3OmniCheckpoint
    spoken: list[Spoken]

    def engine(self, kind: EngineKind = "omni", **options: int) -> Engine:
        strategy = Qwen3TalkerStrategy.from_checkpoint(self.checkpoint, torch.float32)
        given = {"max_total_tokens": 1024, **options}
        return build_engine(kind, talker_decoder(self.checkpoint, strategy), EngineOptions(**given))

    def request(self, index: int, *, text_is_there: bool = True) -> EngineRequest:
        reference = self.spoken[index]
        state = reference.state(self.checkpoint, text_is_there=text_is_there)
        sampling = RequestSampling(
            temperature=0.0,
            repetition_penalty=reference.penalty,
            max_new_tokens=reference.max_new_tokens,
        )
        return EngineRequest(
            f"request-{index}",
            state.prompt.token_ids,
            sampling,
            state=state,
            positions=reference.positions,
            cacheable=False,
        )

    def check(self, requests: list[EngineRequest]) -> None:
        for index, request in enumerate(requests):
            assert frames(request) == self.spoken[index].codes.tolist(), index
            assert request.output_token_ids == self.spoken[index].first_codes


def frames(request: EngineRequest) -> list[list[int]]:
    assert isinstance(request.state, TalkerState)
    return [frame.tolist() for frame in request.state.frames]


@pytest.fixture(scope="module", params=CHECKPOINTS, ids=lambda value: "-".join(map(str, value)))
def talker(request: pytest.FixtureRequest, qwen3_omni: Callable[..., Oracle]) -> Talker:
    shape, seed = request.param
    oracle = qwen3_omni(seed=seed, shape=shape)
    # Random codes seldom repeat: only a strong penalty changes them.
    answers = [
        spoken(oracle, messages, max_tokens=4 + 4 * index, max_new_tokens=24, penalty=(1.05, 1.5)[index % 2])
        for index, messages in enumerate(CONVERSATIONS)
    ]
    return Talker(Qwen3OmniCheckpoint.from_dir(oracle.path), answers)


def test_alone_and_four_at_once(talker: Talker) -> None:
    engine = talker.engine()
    alone = [talker.request(i) for i in range(4)]
    for request in alone:
        run(engine, [request])
    talker.check(alone)
    together = [talker.request(i) for i in range(4)]
    run(engine, together)
    talker.check(together)


def test_in_chunks_and_out_of_step(talker: Talker) -> None:
    engine = talker.engine(chunked_prefill_size=16)
    requests = [talker.request(i) for i in range(4)]
    for request in requests:
        engine.add(request)
        for _ in range(3):
            engine.step()
    finish(engine)
    talker.check(requests)


def test_text_that_comes_late_is_waited_for(talker: Talker) -> None:
    engine = talker.engine()
    requests = [talker.request(i, text_is_there=False) for i in range(4)]
    texts = [iter(talker.spoken[i].token_ids) for i in range(4)]
    for request in requests:
        engine.add(request)
    num_held = 0
    for turn in range(400):
        for index, (request, text) in enumerate(zip(requests, texts, strict=True)):
            # Of each answer the next token comes every few steps, at a pace of its own.
            if turn % (2 + index) == 0:
                assert isinstance(request.state, TalkerState)
                token = next(text, None)
                request.state.end_text() if token is None else request.state.feed([token])
        if engine.has_work:
            engine.step()
        else:
            num_held += 1
    talker.check(requests)
    assert num_held > 3


def test_preempted_and_computed_again(talker: Talker) -> None:
    # Room for all prompts, and for the page that each admission wants to leave to those before it.
    pages = sum(-(-len(reference.prompt_rows) // 16) for reference in talker.spoken) + 3
    engine = talker.engine(max_total_tokens=16 * pages)
    requests = [talker.request(i) for i in range(4)]
    run(engine, requests)
    talker.check(requests)
    assert engine.stats()["num_retracted_requests_total"] > 0
    assert engine.stats()["kv_used_tokens"] == 0


def test_aborts_leave_the_others_alone(talker: Talker) -> None:
    engine = talker.engine()
    requests = [talker.request(i) for i in range(4)]
    for request in requests:
        engine.add(request)
    for _ in range(3):
        engine.step()
    engine.abort(requests[1].request_id)
    again = talker.request(1)
    run(engine, [again])
    requests[1] = again
    talker.check(requests)
