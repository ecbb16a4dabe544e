"""The coordinator: submitting, completing, failing, and what others may ask it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import Pipeline, pipelines, soon
from waiting import until

from sglang_omni.proto import (
    CompleteMessage,
    OmniRequest,
    RequestError,
    RequestState,
    StagePayload,
    SubmitMessage,
)

make = pytest.fixture(pipelines)


async def test_the_entry_stage_gets_the_request_and_the_caller_its_result(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    request = OmniRequest({"prompt": "hi"}, params={"seed": 1})
    result = pipeline.submit("r", request)
    message = await pipeline.submitted()
    assert message.data == StagePayload("r", request, {"raw_inputs": {"prompt": "hi"}})
    assert pipeline.coordinator.request_state("r") is RequestState.RUNNING
    await pipeline.complete("text", "r", {"text": "hello"})
    assert await soon(result) == {"text": "hello"}
    assert pipeline.coordinator.request_state("r") is None


async def test_of_a_caller_who_waits_for_the_whole_nothing_is_streamed(make: Any) -> None:
    pipeline = await make()
    request = OmniRequest("hi", params={"seed": 1, "stream": True})
    pipeline.submit("r", request)
    assert (await pipeline.submitted()).data.request.params == {"seed": 1, "stream": False}
    assert request.params["stream"] is True


async def test_bare_inputs_become_a_request(make: Any) -> None:
    pipeline = await make()
    pipeline.submit("r", [1, 2])
    assert (await pipeline.submitted()).data.request == OmniRequest([1, 2])


async def test_without_terminal_stages_the_first_result_completes(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.complete("audio", "r", 1)
    assert await soon(result) == 1


async def test_several_terminal_stages_are_merged_by_name(make: Any) -> None:
    pipeline = await make(terminal_stages=["text", "audio"])
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.complete("audio", "r", "sound")
    await pipeline.settle()
    assert not result.done()
    await pipeline.complete("text", "r", "words")
    assert await soon(result) == {"audio": "sound", "text": "words"}


async def test_a_single_active_terminal_gives_its_bare_result(make: Any) -> None:
    pipeline = await make(
        terminal_stages=["text", "audio"], terminal_stages_resolver=lambda request: request.metadata["ends"]
    )
    result = pipeline.submit("r", OmniRequest(None, metadata={"ends": ["text"]}))
    await pipeline.submitted()
    await pipeline.complete("audio", "r", "ignored: not one of the request's terminal stages")
    await pipeline.complete("text", "r", "words")
    assert await soon(result) == "words"
    both = pipeline.submit("s", OmniRequest(None, metadata={"ends": None}))
    await pipeline.submitted()
    await pipeline.complete("audio", "s", 1)
    await pipeline.complete("text", "s", 2)
    assert await soon(both) == {"audio": 1, "text": 2}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([], "non-empty"),
        ("text", "non-empty"),
        ([1], "non-empty"),
        (["first"], "outside the static terminal stages"),
    ],
)
async def test_a_wrong_result_of_the_resolver_is_the_requests_error(
    make: Any, answer: Any, error: str
) -> None:
    pipeline = await make(terminal_stages=["text"], terminal_stages_resolver=lambda request: answer)
    with pytest.raises(ValueError, match=error):
        await pipeline.coordinator.submit("r", None)
    assert pipeline.coordinator.health()["total_requests"] == 0


async def test_a_running_id_is_refused_and_the_request_goes_on(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    with pytest.raises(ValueError, match="already exists"):
        await pipeline.coordinator.submit("r", None)
    with pytest.raises(ValueError, match="already exists"):
        await anext(pipeline.coordinator.stream("r", None))
    await pipeline.complete("text", "r", 1)
    assert await soon(result) == 1


async def test_an_id_can_be_used_again_while_stages_remember_it_as_ended(make: Any) -> None:
    pipeline = await make()
    seen = []
    for ending in ("completed", "aborted", "failed", "completed"):
        result = pipeline.submit("r")
        wire_id = (await pipeline.submitted()).request_id
        seen.append(wire_id)
        if ending == "aborted":
            assert await pipeline.coordinator.abort("r")
            assert (await soon(pipeline.stages["text"].recv_abort())).request_id == wire_id
        elif ending == "failed":
            await pipeline.stages["text"].send_complete(CompleteMessage(wire_id, "text", False, error="x"))
            with pytest.raises(RuntimeError):
                await soon(result)
        else:
            await pipeline.complete("text", wire_id, ending)
            assert await soon(result) == ending
    assert seen[0] == "r"
    assert len(set(seen)) == 4


async def test_submitting_needs_a_running_coordinator_and_an_entry_stage(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    with pytest.raises(RuntimeError, match="start"):
        await pipeline.coordinator.submit("r", None)
    await pipeline.coordinator.start()
    with pytest.raises(ValueError, match="entry stage 'first' is not registered"):
        await pipeline.coordinator.submit("r", None)
    await pipeline.coordinator.stop()


async def test_inputs_that_cannot_be_sent_are_the_requests_error(make: Any) -> None:
    pipeline = await make()
    with pytest.raises((TypeError, ValueError)):
        await pipeline.coordinator.submit("r", {"bad": object()})
    result = pipeline.submit("s")
    assert (await pipeline.submitted()).request_id == "s"
    await pipeline.complete("text", "s", 1)
    assert await soon(result) == 1


async def test_a_failure_reaches_the_caller_with_the_stages_name_and_stops_the_others(make: Any) -> None:
    pipeline = await make(terminal_stages=["text", "audio"])
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.complete("text", "r", 1)
    await pipeline.stages["audio"].send_complete(
        CompleteMessage("r", "audio", False, error="ValueError: no voice")
    )
    with pytest.raises(RuntimeError, match=r"stage 'audio': ValueError: no voice"):
        await soon(result)
    assert (await soon(pipeline.stages["first"].recv_abort())).request_id == "r"


async def test_a_fault_of_the_request_keeps_its_fields(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    fault = RequestError("prompt too long: 9 > 8", param="messages", code="context_length_exceeded")
    await pipeline.stages["first"].send_complete(
        CompleteMessage("r", "first", False, error=str(fault), error_info=fault.to_dict())
    )
    with pytest.raises(RequestError) as caught:
        await soon(result)
    assert caught.value.to_dict() == fault.to_dict()


async def test_abort_cancels_the_waiter_and_tells_every_stage(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    assert await pipeline.coordinator.abort("r") is True
    with pytest.raises(asyncio.CancelledError):
        await soon(result)
    for stage in pipeline.stages.values():
        assert (await soon(stage.recv_abort())).request_id == "r"
    assert await pipeline.coordinator.abort("r") is False
    assert await pipeline.coordinator.abort("never was") is False


async def test_a_caller_that_leaves_aborts_its_request(make: Any) -> None:
    pipeline = await make()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pipeline.coordinator.submit("r", None), 0.05)
    assert (await soon(pipeline.stages["text"].recv_abort())).request_id == "r"
    stream = pipeline.coordinator.stream("s", None)
    task = asyncio.create_task(anext(stream))
    await pipeline.submitted()
    await pipeline.submitted()
    await pipeline.chunk("text", "s", "a")
    await soon(task)
    await stream.aclose()
    assert (await soon(pipeline.stages["text"].recv_abort())).request_id == "s"
    assert pipeline.coordinator.get_load()["aborted"] == 2


async def test_late_and_unknown_messages_are_ignored(make: Any) -> None:
    pipeline = await make()
    await pipeline.complete("text", "ghost", 1)
    await pipeline.chunk("text", "ghost", "x")
    await pipeline.progress("text", ("ghost", "text", 1), spans=[("ghost", 1.0, 0.0, 0.0)])
    await pipeline.stages["text"].send_to_stage(
        "coordinator", pipeline.coordinator.control_plane.completion_endpoint, SubmitMessage("r", None)
    )
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.complete("text", "r", 1)
    assert await soon(result) == 1


async def test_load_health_and_timings(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    result = pipeline.submit("r")
    await pipeline.submitted()
    pipeline.submit("s")
    await pipeline.submitted()
    assert pipeline.coordinator.stage_load() == {"first": 2, "text": 0, "audio": 0}
    assert pipeline.coordinator.get_load() == {
        "pending": 0,
        "running": 2,
        "completed": 0,
        "failed": 0,
        "aborted": 0,
    }
    await pipeline.progress("text", ("r", "first", -1), spans=[("r", 0.5, 0.125, 0.0)])
    await pipeline.complete("text", "r", 1)
    await soon(result)
    await pipeline.progress("first", spans=[("r", 0.25, 0.0, 0.0)])
    await pipeline.progress("first", spans=[("r", 0.25, 1.0, 0.0)])
    await until(lambda: pipeline.coordinator.timings("r").get("first", {}).get("wait") == 1.0)
    timings = pipeline.coordinator.timings("r")
    assert timings == {"first": {"work": 0.5, "wait": 1.0}, "text": {"work": 0.5, "wait": 0.125}}
    assert list(timings) == ["first", "text"]  # as in the pipeline, whichever reported first
    assert pipeline.coordinator.timings("unknown") == {}
    assert pipeline.coordinator.get_load()["completed"] == 1
    health = pipeline.coordinator.health()
    assert health["running"] is True
    assert health["stages"] == ["first", "text", "audio"]
    assert health["request_states"] == {"running": 1}


async def test_shutdown_reaches_every_registered_stage(make: Any) -> None:
    pipeline = await make()
    await pipeline.coordinator.shutdown_stages()
    for stage in pipeline.stages.values():
        assert (await soon(stage.recv())).type == "shutdown"
