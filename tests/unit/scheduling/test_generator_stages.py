"""Stages that are generator functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sglang_omni.pipeline.stage.build import as_scheduler
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.generators import join_chunks
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage


def run(function: Callable[..., Any], *, stream: bool, feeds_stages: bool = False) -> list[OutgoingMessage]:
    scheduler = as_scheduler(function, stage="s", factory="m.f", feeds_stages=feeds_stages)
    payload = StagePayload("r", OmniRequest("x", {"stream": stream}), {"n": 2})
    scheduler.inbox.put(IncomingMessage("r", "new_request", payload))
    thread = threading.Thread(target=scheduler.start, daemon=True)
    thread.start()
    found = [scheduler.outbox.get(timeout=30)]
    while found[-1].type == "stream":
        found.append(scheduler.outbox.get(timeout=30))
    scheduler.stop()
    thread.join(30)
    return found


def count(payload: StagePayload) -> Iterator[dict[str, Any]]:
    for index in range(payload.data["n"]):
        yield {"text": str(index)}


class Counter:
    def __call__(self, payload: StagePayload) -> Iterator[dict[str, Any]]:
        yield from count(payload)


@pytest.mark.parametrize("function", [count, Counter()])
def test_chunks_go_to_a_caller_who_streams(function: Callable[..., Any]) -> None:
    *chunks, result = run(function, stream=True)
    assert [chunk.data for chunk in chunks] == [{"text": "0"}, {"text": "1"}]
    assert (result.type, result.data.data) == ("result", {"text": "01"})


def test_others_get_the_whole_alone() -> None:
    (result,) = run(count, stream=False)
    assert result.data.data == {"text": "01"}


def test_stages_get_chunks_whatever_the_caller_wants() -> None:
    assert len(run(count, stream=False, feeds_stages=True)) == 3


def test_what_it_returns_is_the_result() -> None:
    def answer(payload: StagePayload) -> Iterator[dict[str, Any] | None]:
        yield {"text": "a"}
        yield None
        return {"text": "A", "finish_reason": "length"}

    *chunks, result = run(answer, stream=True)
    assert [chunk.data for chunk in chunks] == [{"text": "a"}]
    assert result.data.data == {"text": "A", "finish_reason": "length"}


def test_what_it_raises_is_the_requests_error() -> None:
    def fail(payload: StagePayload) -> Iterator[str]:
        yield "a"
        raise KeyError("b")

    assert [(message.type, str(message.data)) for message in run(fail, stream=True)] == [
        ("stream", "a"),
        ("error", "'b'"),
    ]


def test_an_async_generator_is_refused() -> None:
    async def answer(payload: StagePayload) -> Any:
        yield {"text": "a"}

    with pytest.raises(TypeError, match=r"stage 's': factory 'm.f' returned an async generator function"):
        as_scheduler(answer, stage="s", factory="m.f")


def test_chunks_are_joined_by_what_their_fields_are() -> None:
    whole = join_chunks(
        [
            "a",
            {"text": "b", "token_ids": [1], "finish_reason": None},
            {"audio_data": np.ones(2, np.float32), "sample_rate": 8000},
            {"audio_data": np.zeros(1, np.float32), "sample_rate": 8000, "token_ids": [2, 3]},
            {"finish_reason": "length"},
        ]
    )
    sound = whole.pop("audio_data")
    assert whole == {"text": "ab", "token_ids": [1, 2, 3], "sample_rate": 8000, "finish_reason": "length"}
    assert (sound.dtype, sound.tolist()) == (np.float32, [1, 1, 0])


def test_words_are_timed_from_the_first_sound() -> None:
    word = {"word": "a", "start": 0.5, "end": 1.0}
    second = torch.zeros(1, 4)
    for piece in (second, second.numpy(), [0.0] * 4):
        chunk = {"words": [word], "audio_data": piece, "sample_rate": 4}
        whole = join_chunks([{"text": "before"}, chunk, chunk])
        assert whole["words"] == [word, {"word": "a", "start": 1.5, "end": 2.0}]


def test_tensors_are_joined_to_a_tensor() -> None:
    whole = join_chunks([{"audio_data": torch.ones(1, 2), "sample_rate": 1}] * 2)
    assert torch.equal(whole["audio_data"], torch.ones(4))


def test_what_cannot_be_joined_is_reported() -> None:
    with pytest.raises(ValueError, match="sample_rate changed from 8000 to 16000 between chunks"):
        join_chunks([{"sample_rate": 8000}, {"sample_rate": 16000}])
    with pytest.raises(TypeError, match=r"a generator must yield texts or dicts .*, got float"):
        join_chunks([0.5])
