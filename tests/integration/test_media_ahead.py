"""SGLang's steps launched ahead, of thinkers that read media: the answers are those of steps one by one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from engine_runs import finish, run
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user
from sglang_engines import assert_empty, engines
from thinker_requests import ThinkerPrompt

from sglang_omni.engines import EngineRequest
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import talker_decoder, thinker_decoder
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy

CONVERSATIONS = [
    [user("Name three rivers and the seas that they flow into.")],
    [user(image_part(picture(3, 80, 140)), audio_part(sound(4, 0.7)), "And together?")],
    [user(image_part(picture(6)), "or", image_part(picture(7, 64, 64)), "?")],
    [user("Listen:", audio_part(sound(2, 1.3)), "What do you hear?")],
]
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def checkpoint(qwen3_omni: Callable[..., Oracle]) -> Qwen3OmniCheckpoint:
    return Qwen3OmniCheckpoint.from_dir(qwen3_omni(seed=2, shape="deep").path)


@pytest.fixture(scope="module")
def prompts(qwen3_omni: Callable[..., Oracle]) -> list[ThinkerPrompt]:
    oracle = qwen3_omni(seed=2, shape="deep")
    return [ThinkerPrompt.of(oracle, messages, max_tokens=14) for messages in CONVERSATIONS]


@pytest.fixture
def build(checkpoint: Qwen3OmniCheckpoint) -> Iterator[Build]:
    with engines("sglang") as build_engine:

        def ahead(**options: Any) -> Any:
            defaults = {"max_total_tokens": 2048, "chunked_prefill_size": 16, "overlap_schedule": True}
            return build_engine(thinker_decoder(checkpoint, for_speech=False), **{**defaults, **options})

        yield ahead


def requests_of(prompts: list[ThinkerPrompt]) -> list[EngineRequest]:
    return [prompt.request(str(number), wants_hidden=False) for number, prompt in enumerate(prompts)]


def check(requests: list[EngineRequest], prompts: list[ThinkerPrompt]) -> None:
    for request in requests:
        assert request.output_token_ids == prompts[int(request.request_id)].token_ids


def test_who_steps_ahead(checkpoint: Qwen3OmniCheckpoint, build: Build) -> None:
    assert build().scheduler.enable_overlap
    speaks = thinker_decoder(checkpoint, for_speech=True)
    talks = talker_decoder(checkpoint, Qwen3TalkerStrategy.from_checkpoint(checkpoint, torch.float32))
    assert not speaks.steps_ahead
    assert not talks.steps_ahead
    with engines("sglang") as build_engine:
        assert not build_engine(speaks, overlap_schedule=True).scheduler.enable_overlap


@pytest.mark.parametrize("chunk", [16, 512])
def test_together_over_cached_media_and_out_of_step(
    build: Build, prompts: list[ThinkerPrompt], chunk: int
) -> None:
    engine = build(chunked_prefill_size=chunk)
    together, again = requests_of(prompts), requests_of(prompts)
    run(engine, together)
    check(together, prompts)
    for request in again:
        engine.add(request)
        engine.step()
        engine.step()
    finish(engine)
    check(again, prompts)
    assert all(request.cached_tokens for request in again)
    assert_empty(engine)


def test_retracted_ones_are_computed_again(
    build: Build, prompts: list[ThinkerPrompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(prefix_cache=False)
    # SGLang takes KV away from some requests every three steps, without need.
    monkeypatch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT", True)
    requests = requests_of(prompts)
    run(engine, requests)
    check(requests, prompts)
    assert engine.stats()["num_retracted_requests_total"] > 2
    assert_empty(engine)


class Stop:
    """Finds its text with the third token."""

    def __init__(self) -> None:
        self.seen = 0

    def feed(self, token_ids: list[int]) -> bool:
        self.seen += len(token_ids)
        return self.seen >= 3

    def finish(self) -> None:
        pass


def test_aborts_and_stop_texts_beside_others(build: Build, prompts: list[ThinkerPrompt]) -> None:
    for steps in range(8):
        engine = build()
        requests = requests_of(prompts)
        aborted, stopped = requests[1], requests[2]
        stopped.detokenizer = Stop()
        for request in requests:
            engine.add(request)
        for _ in range(steps):
            engine.step()
        engine.abort(aborted.request_id)
        finish(engine)
        check([requests[0], requests[3]], prompts)
        assert stopped.output_token_ids == prompts[2].token_ids[:3]
        assert stopped.finish_reason == "stop"
        assert aborted.output_token_ids == prompts[1].token_ids[: len(aborted.output_token_ids)]
        assert_empty(engine)


def test_media_stay_until_the_step_that_reads_them_is_over(
    build: Build, prompts: list[ThinkerPrompt]
) -> None:
    engine = build(chunked_prefill_size=512)
    media = prompts[2].embeds.clone()
    request = prompts[2].request("0", wants_hidden=False)
    request.state.media_embeds = media  # type: ignore[union-attr]
    kept = weakref.ref(media)
    engine.add(request)
    engine.step()
    assert (request.output_token_ids, len(engine.scheduler.result_queue)) == ([], 1)
    engine.abort("0")
    del request, media
    gc.collect()
    assert kept() is not None
    run(engine, [prompts[0].request("1", wants_hidden=False)])
    gc.collect()
    assert kept() is None


def test_a_step_waits_for_the_stream_on_which_media_came(build: Build, prompts: list[ThinkerPrompt]) -> None:
    engine = build()
    waits: list[tuple[str, object]] = []

    class Stream(torch.cpu.Stream):
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, stream: object) -> None:
            waits.append((self.name, stream))

    scheduler, outer = engine.scheduler, torch.cpu.current_stream()
    scheduler.schedule_stream, scheduler.forward_stream = Stream("schedule"), Stream("forward")
    engine.add(prompts[1].request("0", wants_hidden=False))
    engine.step()
    assert waits == [("schedule", outer), ("forward", scheduler.schedule_stream)]
    finish(engine)
