"""The talker's strategy against transformers' own: rows it reads, codes of each frame."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user
from talker_oracle import Spoken, spoken

from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.talker_state import TalkerState
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy

CONVERSATIONS = {
    "text": [user("Tell me about the sea.")],
    "turns": [
        {"role": "system", "content": "You are terse."},
        user("Hello there."),
        {"role": "assistant", "content": "Good morning, what now?"},
        user("Sing."),
    ],
    "media": [
        user("Look.", image_part(picture(1))),
        {"role": "assistant", "content": "A blob."},
        user(audio_part(sound(2)), "And this, with", image_part(picture(3, 64, 64))),
    ],
}


class Case(NamedTuple):
    reference: Spoken
    checkpoint: Qwen3OmniCheckpoint
    strategy: Qwen3TalkerStrategy
    talker: Any

    def state(self) -> TalkerState:
        return self.reference.state(self.checkpoint)


@pytest.fixture(scope="module")
def cases(qwen3_omni: Callable[..., Oracle]) -> dict[str, list[Case]]:
    """Every conversation, by shape of checkpoint."""

    def of(shape: str, seed: int) -> Iterator[Case]:
        oracle = qwen3_omni(seed=seed, shape=shape)
        checkpoint = Qwen3OmniCheckpoint.from_dir(oracle.path)
        strategy = Qwen3TalkerStrategy.from_checkpoint(checkpoint, torch.float32)
        for index, messages in enumerate(CONVERSATIONS.values()):
            reference = spoken(oracle, messages, max_tokens=6 + 3 * index)
            yield Case(reference, checkpoint, strategy, oracle.model.talker)

    return {shape: list(of(shape, seed)) for seed, shape in enumerate(("default", "deep", "narrow"), start=1)}


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def span(state: TalkerState, start: int, count: int = 1) -> SequenceSpan:
    return SequenceSpan(state, start, count, 0, True)


@pytest.mark.parametrize("shape", ["default", "deep", "narrow"])
def test_prompts_are_the_references_rows(cases: dict[str, list[Case]], shape: str) -> None:
    for case in cases[shape]:
        reference, strategy, state = case.reference, case.strategy, case.state()
        count = state.num_prompt_rows
        assert state.prompt.rope_ids == reference.rope_ids
        whole = strategy.prefill_forward([span(state, 0, count)])
        torch.testing.assert_close(whole, reference.prompt_rows, rtol=1e-4, atol=1e-5)
        for size in (1, 7):
            chunks = [
                strategy.prefill_forward([span(state, i, min(size, count - i))])
                for i in range(0, count, size)
            ]
            torch.testing.assert_close(torch.cat(chunks), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", ["default", "deep", "narrow"])
def test_frames_together_are_the_references_alone(cases: dict[str, list[Case]], shape: str) -> None:
    spoken_here = [(case.state(), case.reference) for case in cases[shape]]
    strategy = cases[shape][0].strategy
    for step in range(max(len(reference.first_codes) for _, reference in spoken_here)):
        alive = [(s, r) for s, r in spoken_here if step < len(r.first_codes)]
        hidden = torch.stack([reference.hidden[step] for _, reference in alive])
        tokens = [reference.first_codes[step] for _, reference in alive]
        strategy.extract_output([span(state, 0) for state, _ in alive], hidden, tokens)
    for state, reference in spoken_here:
        assert torch.stack(state.frames).tolist() == reference.codes.tolist()


def test_a_frame_is_read_with_its_text(cases: dict[str, list[Case]]) -> None:
    reference, _, strategy, talker = case = cases["default"][0]
    state = case.state()
    state.frames = list(reference.codes.unbind())
    count, texts = len(state.frames), reference.text_rows
    assert count > len(texts), "the text should end before the speech"
    tables = [talker.get_input_embeddings(), *talker.code_predictor.get_input_embeddings()]
    expected = [
        sum(table(code) for table, code in zip(tables, frame, strict=True))
        + (texts[i] if i < len(texts) else reference.pad_row)
        for i, frame in enumerate(reference.codes)
    ]
    rows = torch.cat([strategy.write_buffers([span(state, state.num_prompt_rows + i)]) for i in range(count)])
    torch.testing.assert_close(rows, torch.stack(expected), rtol=1e-4, atol=1e-5)
    again = strategy.prefill_forward([span(state, state.num_prompt_rows - 2, count + 2)])
    torch.testing.assert_close(again[2:], rows)


def test_sampled_codes_depend_on_the_seed_alone(cases: dict[str, list[Case]]) -> None:
    reference, checkpoint, strategy, _ = cases["default"][0]

    def speak(seeds: list[int | None]) -> list[list[list[int]]]:
        states = [reference.state(checkpoint) for _ in seeds]
        for state, seed in zip(states, seeds, strict=True):
            state.generator = None if seed is None else random.Random(seed)
        for hidden, token in zip(reference.hidden, reference.first_codes, strict=True):
            spans = [span(state, 0) for state in states]
            strategy.extract_output(spans, hidden.expand(len(spans), -1), [token] * len(spans))
        return [torch.stack(state.frames).tolist() for state in states]

    alone = [speak([seed])[0] for seed in (1, 2)]
    assert speak([2, None, 1]) == [alone[1], reference.codes.tolist(), alone[0]]
    assert alone[0] != alone[1]
