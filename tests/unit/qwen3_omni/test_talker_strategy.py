"""The talker's strategy equals transformers: its input rows, and the codes of each frame."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user
from talker_oracle import Spoken, spoken

from sglang_omni.model_runner.feedback import (
    FeedbackBatch,
    FeedbackBuffers,
    FeedbackStrategy,
    StateSink,
    prefill,
)
from sglang_omni.model_runner.feedback_runner import FeedbackARModelRunner
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.frames.strategy import FrameStrategy
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
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

    def state(self) -> Qwen3TalkerState:
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


class Model:
    """Stands for the decoder."""

    def __init__(self) -> None:
        self.feedback = FeedbackBuffers()


def prompt_rows(strategy: Qwen3TalkerStrategy, *spans: SequenceSpan) -> torch.Tensor:
    model = Model()
    prefill(strategy, model, None, spans)
    return model.feedback.take_input_rows()


def step_rows(strategy: Qwen3TalkerStrategy, *spans: SequenceSpan) -> torch.Tensor:
    model = Model()
    strategy.write_buffers(model, FeedbackBatch(spans), spans)
    return model.feedback.take_input_rows()


def extract(
    strategy: Qwen3TalkerStrategy, spans: list[SequenceSpan], hidden: torch.Tensor, tokens: list[int]
) -> None:
    model = Model()
    model.feedback.output_rows = hidden
    strategy.extract_output(model, FeedbackBatch(spans, tokens), spans, StateSink())


def span(state: Qwen3TalkerState, start: int, count: int = 1) -> SequenceSpan:
    return SequenceSpan(state, start, count, 0, True)


@pytest.mark.parametrize("shape", ["default", "deep", "narrow"])
def test_prompts_are_the_references_rows(cases: dict[str, list[Case]], shape: str) -> None:
    for case in cases[shape]:
        reference, strategy, state = case.reference, case.strategy, case.state()
        count = state.num_prompt_rows
        assert state.prompt.rope_ids == reference.rope_ids
        whole = prompt_rows(strategy, span(state, 0, count))
        torch.testing.assert_close(whole, reference.prompt_rows, rtol=1e-4, atol=1e-5)
        for size in (1, 7):
            chunks = [
                prompt_rows(strategy, span(state, i, min(size, count - i))) for i in range(0, count, size)
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
        extract(strategy, [span(state, 0) for state, _ in alive], hidden, tokens)
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
    rows = torch.cat([step_rows(strategy, span(state, state.num_prompt_rows + i)) for i in range(count)])
    torch.testing.assert_close(rows, torch.stack(expected), rtol=1e-4, atol=1e-5)
    again = prompt_rows(strategy, span(state, state.num_prompt_rows - 2, count + 2))
    torch.testing.assert_close(again[2:], rows)


def test_sampled_codes_depend_on_the_seed_alone(cases: dict[str, list[Case]]) -> None:
    reference, checkpoint, strategy, _ = cases["default"][0]

    def speak(seeds: list[int | None]) -> list[list[list[int]]]:
        states = [reference.state(checkpoint) for _ in seeds]
        for state, seed in zip(states, seeds, strict=True):
            state.generator = None if seed is None else random.Random(seed)
        for hidden, token in zip(reference.hidden, reference.first_codes, strict=True):
            spans = [span(state, 0) for state in states]
            extract(strategy, spans, hidden.expand(len(spans), -1), [token] * len(spans))
        return [torch.stack(state.frames).tolist() for state in states]

    alone = [speak([seed])[0] for seed in (1, 2)]
    assert speak([2, None, 1]) == [alone[1], reference.codes.tolist(), alone[0]]
    assert alone[0] != alone[1]


def test_its_signatures_are_the_protocols(cases: dict[str, list[Case]]) -> None:
    """As strategies are written: by these names, in this order."""
    expected = {
        "write_buffers": ["model", "schedule_batch", "requests"],
        "extract_output": ["model", "schedule_batch", "requests", "outbox"],
        "prefill_forward": ["tp_worker", "forward_batch", "requests"],
    }
    for owner in (FeedbackStrategy, Qwen3TalkerStrategy, FrameStrategy):
        for name, parameters in expected.items():
            assert list(inspect.signature(getattr(owner, name)).parameters)[1:] == parameters


def test_a_strategy_leaves_the_forward_to_the_engine(cases: dict[str, list[Case]]) -> None:
    class Computes:
        def prefill_forward(self, tp_worker: object, forward_batch: object, requests: object) -> object:
            return "hidden states"

    with pytest.raises(TypeError, match=r"Computes\.prefill_forward returned a result"):
        prefill(Computes(), Model(), None, [])  # type: ignore[arg-type]


def test_rows_of_a_step_that_failed_are_gone() -> None:
    class Failing:
        fails = True

        def write_buffers(self, model: Any, schedule_batch: FeedbackBatch, requests: Any) -> None:
            model.feedback.input_rows.append(torch.ones(len(requests), 2))

        def prefill_forward(self, tp_worker: Any, forward_batch: Any, requests: Any) -> None:
            if self.fails:
                raise OSError("no rows")
            tp_worker.model.feedback.input_rows.append(torch.zeros(3, 2))

    strategy: Any = Failing()
    model: Any = SimpleNamespace(device=torch.device("cpu"))
    runner = FeedbackARModelRunner(model, None, strategy)  # type: ignore[arg-type]
    batch: Any = FeedbackBatch([SequenceSpan(None, 4, 1, 0, True), SequenceSpan(None, 0, 3, 1, True)])
    with pytest.raises(OSError, match="no rows"):
        runner.input_rows(batch)
    strategy.fails = False
    assert runner.input_rows(batch).tolist() == [[1.0, 1.0]] + 3 * [[0.0, 0.0]]
