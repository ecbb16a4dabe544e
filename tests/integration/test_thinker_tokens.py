"""The thinker in our engine: media, deepstack and hidden states as transformers has them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from engine_runs import run
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user, video, video_part
from torch import Tensor

from sglang_omni.engines import EngineOptions, EngineRequest, OmniEngine, RequestSampling
from sglang_omni.engines.build import build_omni_engine
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder

Make = Callable[..., Oracle]
MAX_TOKENS = 14
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "text": [user("Name three rivers and the seas that they flow into.")],
    "image": [user(image_part(picture(1)), "What is this?")],
    "audio": [user(audio_part(sound(2, 1.3)), "What do you hear?")],
    "both": [user(image_part(picture(3, 80, 140)), audio_part(sound(4, 0.7)), "And together?")],
    "video": [user(video_part(video(5)), "What happens?")],
    "images": [user(image_part(picture(6)), "or", image_part(picture(7, 64, 64)), "?")],
    "turns": [
        user(image_part(picture(8, 96, 64)), "Look."),
        {"role": "assistant", "content": "I see blobs."},
        user(audio_part(sound(9, 0.5)), image_part(picture(10, 64, 96)), "And now?"),
    ],
}


class Case(NamedTuple):
    """A prompt as the pipeline gives it to the thinker, and what transformers makes of it."""

    prompt: list[int]
    keys: list[int]
    positions: RotaryPositions
    state: ThinkerState
    tokens: list[int]
    hidden: Tensor

    def request(self, request_id: str, **fields: Any) -> EngineRequest:
        return EngineRequest(
            request_id,
            self.prompt,
            RequestSampling(temperature=0.0, max_new_tokens=MAX_TOKENS),
            state=replace(self.state, media_hidden=None),
            positions=self.positions,
            key_token_ids=self.keys,
            **fields,
        )


@torch.inference_mode()
def make_case(oracle: Oracle, messages: list[dict[str, Any]]) -> Case:
    inputs = oracle.inputs(messages)
    thinker = oracle.model.thinker
    config = oracle.model.config.thinker_config
    ids = inputs["input_ids"]
    end = oracle.model.config.im_end_token_id
    output = thinker.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=end,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    visual_rows: list[tuple[Tensor, Tensor, tuple[Tensor, ...]]] = []
    for token, pixels, grid, encode in (
        (config.image_token_id, "pixel_values", "image_grid_thw", thinker.get_image_features),
        (config.video_token_id, "pixel_values_videos", "video_grid_thw", thinker.get_video_features),
    ):
        if pixels in inputs:
            encoded = encode(inputs[pixels], inputs[grid], return_dict=True)
            visual_rows.append(
                (
                    (ids[0] == token).nonzero().squeeze(1),
                    torch.cat(encoded.pooler_output),
                    tuple(torch.cat(level) for level in encoded.deepstack_features),
                )
            )
    media = [(positions, embeds) for positions, embeds, _ in visual_rows]
    lengths = None
    if "input_features" in inputs:
        mask = inputs["feature_attention_mask"]
        lengths = mask.sum(dim=1)
        encoded = thinker.get_audio_features(inputs["input_features"], mask, return_dict=True)
        media.append(((ids[0] == config.audio_token_id).nonzero().squeeze(1), encoded.last_hidden_state))
    positions, delta = thinker.get_rope_index(
        ids,
        inputs.get("image_grid_thw"),
        inputs.get("video_grid_thw"),
        inputs["attention_mask"],
        False,
        lengths,
        inputs.get("video_second_per_grid"),
    )
    width = config.text_config.hidden_size
    places = torch.cat([torch.zeros(0, dtype=torch.long), *(places for places, _ in media)])
    embeds = torch.cat([torch.zeros(0, width), *(embeds for _, embeds in media)])
    order = places.argsort()
    prompt = ids[0].tolist()
    keys = list(prompt)
    for place, row in zip(places.tolist(), embeds, strict=True):
        keys[place] = config.text_config.vocab_size + int(
            hashlib.sha256(row.numpy().tobytes()).hexdigest()[:12], 16
        )
    accept = oracle.model.config.talker_config.accept_hidden_layer
    state = ThinkerState(
        media_positions=places[order],
        media_embeds=embeds[order],
        visual_positions=torch.cat([torch.zeros(0, dtype=torch.long), *(rows for rows, _, _ in visual_rows)]),
        deepstack=tuple(
            torch.cat(level) for level in zip(*(levels for _, _, levels in visual_rows), strict=True)
        ),
        wants_hidden=True,
    )
    return Case(
        prompt,
        keys,
        RotaryPositions(positions[:, 0].long(), int(delta)),
        state,
        output.sequences[0, len(prompt) :].tolist(),
        output.hidden_states[0][accept][0, places[order]],
    )


@pytest.fixture(scope="module")
def cases(qwen3_omni: Make) -> Callable[[str, int], dict[str, Case]]:
    made: dict[tuple[str, int], dict[str, Case]] = {}

    def cases_of(shape: str, seed: int) -> dict[str, Case]:
        if (shape, seed) not in made:
            oracle = qwen3_omni(seed, shape)
            made[shape, seed] = {name: make_case(oracle, messages) for name, messages in MESSAGES.items()}
        return made[shape, seed]

    return cases_of


def build(path: Path, **options: Any) -> OmniEngine:
    spec = thinker_decoder(Qwen3OmniCheckpoint.from_dir(path), for_speech=True)
    return build_omni_engine(spec, EngineOptions(**{"page_size": 4, "max_total_tokens": 4096, **options}))


def check(case: Case, request: EngineRequest) -> None:
    assert request.output_token_ids == case.tokens
    assert isinstance(request.state, ThinkerState)
    assert request.state.media_hidden is not None
    torch.testing.assert_close(request.state.media_hidden, case.hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "seed"), [("default", 0), ("deep", 2), ("narrow", 3)])
def test_alone_and_in_a_batch(qwen3_omni: Make, cases: Any, shape: str, seed: int) -> None:
    engine = build(qwen3_omni(seed, shape).path, prefix_cache=False)
    expected = cases(shape, seed)
    assert len({token for case in expected.values() for token in case.tokens}) > 10

    for name, case in expected.items():
        request = case.request(name)
        run(engine, [request])
        check(case, request)
    together = [case.request(name) for name, case in expected.items()]
    run(engine, together)

    for case, request in zip(expected.values(), together, strict=True):
        check(case, request)
    assert engine.stats()["max_batch_size"] == len(expected)


def test_chunks_that_cut_media(qwen3_omni: Make, cases: Any) -> None:
    engine = build(qwen3_omni(2, "deep").path, chunked_prefill_size=16, prefix_cache=False)
    expected = cases("deep", 2)
    requests = [case.request(name) for name, case in expected.items()]

    # They join while others are decoded: one every third step.
    for request in requests:
        engine.add(request)
        for _ in range(3):
            engine.step()
    while engine.has_work:
        engine.step()

    for case, request in zip(expected.values(), requests, strict=True):
        check(case, request)


@pytest.mark.parametrize("chunk", [16, 512])
def test_a_cached_prefix_gives_tokens_and_hidden_states(qwen3_omni: Make, cases: Any, chunk: int) -> None:
    engine = build(qwen3_omni(0, "default").path, chunked_prefill_size=chunk)
    expected = cases("default", 0)
    run(engine, [replace_state(case.request(name), wants_hidden=False) for name, case in expected.items()])

    again = [case.request(name) for name, case in expected.items()]
    run(engine, again)

    for case, request in zip(expected.values(), again, strict=True):
        check(case, request)
        assert request.cached_tokens == (len(case.prompt) - 1) // 4 * 4


def test_other_media_of_the_same_size_are_no_cached_prefix(qwen3_omni: Make, cases: Any) -> None:
    oracle = qwen3_omni(0, "default")
    first, second = (
        make_case(oracle, [user(image_part(picture(seed, 96, 96)), "Which one?")]) for seed in (20, 21)
    )
    assert first.prompt == second.prompt
    engine = build(oracle.path)

    for case in (first, second, first):
        request = case.request("a")
        run(engine, [request])
        check(case, request)
    assert request.cached_tokens > first.state.media_end
    assert not torch.equal(first.hidden, second.hidden)


def test_requests_put_out_of_a_full_pool_come_back(qwen3_omni: Make, cases: Any) -> None:
    expected = cases("default", 1)
    engine = build(
        qwen3_omni(1, "default").path, max_total_tokens=120, chunked_prefill_size=32, prefix_cache=False
    )
    cases_twice = [
        (f"{name}-{turn}", case) for turn in range(3) for name, case in expected.items() if name != "video"
    ]
    requests = [case.request(name) for name, case in cases_twice]

    run(engine, requests)

    for (_, case), request in zip(cases_twice, requests, strict=True):
        check(case, request)
    assert sum(request.num_preempted for request in requests) > 0
    assert engine.scheduler.resources.num_used_pages == 0


def replace_state(request: EngineRequest, **fields: Any) -> EngineRequest:
    assert isinstance(request.state, ThinkerState)
    request.state = replace(request.state, **fields)
    return request


class Hesitant:
    """A state whose inputs arrive as the test lets them."""

    def __init__(self, ready: int) -> None:
        self.ready = ready

    def is_ready(self, num_tokens: int) -> bool:
        return num_tokens <= self.ready


def hesitant(case: Case, name: str, ready: int) -> tuple[EngineRequest, Hesitant]:
    state = Hesitant(ready)
    sampling = RequestSampling(temperature=0.0, max_new_tokens=MAX_TOKENS)
    return EngineRequest(name, case.prompt, sampling, state=state), state


def test_requests_wait_for_their_inputs(qwen3_omni: Make, cases: Any) -> None:
    case = cases("default", 0)["text"]
    engine = build(qwen3_omni(0, "default").path)
    late, state = hesitant(case, "late", len(case.prompt) - 1)
    engine.add(late)
    assert not engine.has_work
    assert engine.step() == []

    state.ready = len(case.prompt) + 3
    other = EngineRequest("other", case.prompt, RequestSampling(temperature=0.0, max_new_tokens=MAX_TOKENS))
    run(engine, [other])
    assert other.output_token_ids == case.tokens
    assert late.output_token_ids == case.tokens[:4], "it is held where its fifth token's input is missing"
    assert engine.stats()["num_running_reqs"] == 1

    state.ready = 10_000
    run(engine, [])
    assert late.output_token_ids == case.tokens


def test_held_requests_make_room_for_those_that_run(qwen3_omni: Make, cases: Any) -> None:
    case = cases("default", 0)["text"]
    length = len(case.prompt)
    engine = build(
        qwen3_omni(0, "default").path, max_total_tokens=2 * length + 16, page_size=1, prefix_cache=False
    )
    held, state = hesitant(case, "held", length)
    run(engine, [held])
    runs, _ = hesitant(case, "runs", 10_000)
    third, _ = hesitant(case, "third", 10_000)
    engine.add(runs)
    engine.step()
    engine.add(third)
    while runs.finish_reason is None:
        assert engine.has_work
        engine.step()

    assert held.num_preempted == 0 or not held.pages
    state.ready = 10_000
    run(engine, [])
    assert [r.output_token_ids for r in (held, runs, third)] == [case.tokens] * 3


def test_what_fits_beside_no_held_request_waits_with_it(qwen3_omni: Make, cases: Any) -> None:
    case = cases("default", 0)["text"]
    engine = build(
        qwen3_omni(0, "default").path, max_total_tokens=len(case.prompt) + 20, page_size=1, prefix_cache=False
    )
    held, state = hesitant(case, "held", len(case.prompt))
    run(engine, [held])
    ready, _ = hesitant(case, "ready", 10_000)
    engine.add(ready)
    assert not engine.has_work, "a scheduler would spin"

    state.ready = 10_000
    run(engine, [])
    assert held.output_token_ids == ready.output_token_ids == case.tokens
