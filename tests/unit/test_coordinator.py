"""The coordinator over real sockets, with the stages played by hand."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from sglang_omni.pipeline import coordinator as module
from sglang_omni.pipeline.control_plane import StageControlPlane
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.proto import (
    CompleteMessage,
    OmniRequest,
    ProgressMessage,
    RequestError,
    RequestState,
    StagePayload,
    StreamMessage,
    SubmitMessage,
)

WAIT_S = 60


@pytest.fixture(autouse=True)
def _no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline of the coordinator's own comes between what a test sends and what it expects."""
    monkeypatch.setattr(module, "_SETTLE_S", 1000.0)


class Pipeline:
    """A coordinator and the control planes of stages ``first``, ``text`` and ``audio``."""

    def __init__(self, directory: Path, **options: Any) -> None:
        endpoint = {
            name: f"ipc://{directory}/{name}" for name in ("completion", "abort", "first", "text", "audio")
        }
        self.coordinator = Coordinator(endpoint["completion"], endpoint["abort"], "first", **options)
        self.stages = {
            name: StageControlPlane(name, endpoint[name], endpoint["completion"], endpoint["abort"])
            for name in ("first", "text", "audio")
        }
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        await self.coordinator.start()
        for name, stage in self.stages.items():
            await stage.start()
            self.coordinator.register_stage(name, stage.recv_endpoint)

    async def close(self) -> None:
        await self.coordinator.stop()
        for stage in self.stages.values():
            stage.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def submit(self, request_id: str, request: Any = "hi") -> asyncio.Task[Any]:
        task = asyncio.create_task(self.coordinator.submit(request_id, request))
        self._tasks.append(task)
        return task

    async def submitted(self) -> SubmitMessage:
        message = await soon(self.stages["first"].recv())
        assert isinstance(message, SubmitMessage)
        return message

    async def complete(self, stage: str, request_id: str, result: Any) -> None:
        await self.stages[stage].send_complete(CompleteMessage(request_id, stage, True, result=result))

    async def chunk(self, stage: str, request_id: str, text: str) -> None:
        await self.stages[stage].send_stream(StreamMessage(request_id, stage, {"text": text}))

    async def progress(self, stage: str, *changes: Any, spans: Any = ()) -> None:
        message = ProgressMessage(stage, [list(change) for change in changes], [list(span) for span in spans])
        await self.stages[stage].send_progress(message)

    async def settle(self) -> None:
        """Returns once the coordinator has handled all that the stages have sent so far."""
        for name, stage in self.stages.items():
            marker = self.submit_marker(name)
            await stage.send_complete(CompleteMessage(marker, name, False, error="marker"))
            await until(lambda marker=marker: marker not in self.coordinator._by_wire_id)

    def submit_marker(self, name: str) -> str:
        marker = f"marker-{name}-{len(self._tasks)}"
        tracked = self.coordinator._admit(marker, None, None)
        self._tasks.append(asyncio.ensure_future(tracked.outcome))
        return marker


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, WAIT_S)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    made: list[Pipeline] = []

    async def start(**options: Any) -> Pipeline:
        pipeline = Pipeline(tmp_path, **options)
        made.append(pipeline)
        await pipeline.start()
        return pipeline

    yield start
    for pipeline in made:
        await pipeline.close()


# --- submitting and completing ---------------------------------------------------------------------


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
async def test_a_bad_answer_of_the_resolver_is_the_requests_error(make: Any, answer: Any, error: str) -> None:
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


async def test_an_id_can_be_used_again_though_stages_may_remember_it_as_gone(make: Any) -> None:
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


# --- failures and aborts ---------------------------------------------------------------------------


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
    await pipeline.progress("text", ("ghost", "text", 1), spans=[("ghost", 1.0)])
    await pipeline.stages["text"].send_to_stage(
        "coordinator", pipeline.coordinator.control_plane.completion_endpoint, SubmitMessage("r", None)
    )
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.complete("text", "r", 1)
    assert await soon(result) == 1


# --- streams ---------------------------------------------------------------------------------------


async def collect(stream: AsyncIterator[Any], into: list[Any]) -> None:
    async for message in stream:
        into.append(message)  # noqa: PERF401  what came before a failure is kept


async def test_chunks_come_in_order_and_the_merged_result_last(make: Any) -> None:
    pipeline = await make(terminal_stages=["text", "audio"])
    got: list[Any] = []
    reading = asyncio.create_task(collect(pipeline.coordinator.stream("r", None), got))
    await pipeline.submitted()
    for text in "abc":
        await pipeline.chunk("text", "r", text)
    await pipeline.complete("text", "r", 1)
    await pipeline.chunk("audio", "r", "d")
    await pipeline.complete("audio", "r", 2)
    await soon(reading)
    assert [m.chunk["text"] for m in got if m.from_stage == "text"] == ["a", "b", "c"]
    assert [m.type for m in got] == ["stream"] * 4 + ["complete"]
    assert got[-1] == CompleteMessage("r", "coordinator", True, result={"text": 1, "audio": 2})


async def test_a_stream_ends_with_the_only_terminals_result(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    got: list[Any] = []
    reading = asyncio.create_task(collect(pipeline.coordinator.stream("r", None), got))
    await pipeline.submitted()
    await pipeline.complete("text", "r", "all")
    await soon(reading)
    assert got == [CompleteMessage("r", "text", True, result="all")]


async def test_chunks_of_other_stages_are_awaited_before_the_end(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    got: list[Any] = []
    reading = asyncio.create_task(collect(pipeline.coordinator.stream("r", None), got))
    await pipeline.submitted()
    await pipeline.chunk("first", "r", "a")
    await until(lambda: len(got) == 1)
    await pipeline.complete("text", "r", "all")  # On a connection of its own, ahead of what follows.
    await pipeline.settle()
    await pipeline.chunk("first", "r", "b")
    await pipeline.progress("first", spans=[("r", 0.1)])
    await soon(reading)
    assert [getattr(m, "chunk", None) for m in got] == [{"text": "a"}, {"text": "b"}, None]


async def test_a_stage_that_never_says_it_is_done_delays_the_end_but_does_not_prevent_it(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLE_S", 0.05)
    pipeline = await make(terminal_stages=["text"])
    got: list[Any] = []
    reading = asyncio.create_task(collect(pipeline.coordinator.stream("r", None), got))
    await pipeline.submitted()
    await pipeline.chunk("first", "r", "a")
    await until(lambda: len(got) == 1)
    await pipeline.complete("text", "r", "all")
    await soon(reading)
    assert got[-1].result == "all"


async def test_a_failing_stream_gives_its_chunks_first(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    got: list[Any] = []
    reading = asyncio.create_task(collect(pipeline.coordinator.stream("r", None), got))
    await pipeline.submitted()
    await pipeline.chunk("text", "r", "a")
    await pipeline.stages["text"].send_complete(CompleteMessage("r", "text", False, error="boom"))
    with pytest.raises(RuntimeError, match="boom"):
        await soon(reading)
    assert [m.chunk for m in got] == [{"text": "a"}]


async def test_a_failure_that_nobody_waits_for_any_more_is_not_reported_as_lost(make: Any) -> None:
    lost: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: lost.append(context))
    pipeline = await make(terminal_stages=["text"])
    stream = pipeline.coordinator.stream("r", None)
    first = asyncio.create_task(anext(stream))
    await pipeline.submitted()
    await pipeline.chunk("text", "r", "a")
    await soon(first)
    await pipeline.stages["text"].send_complete(CompleteMessage("r", "text", False, error="boom"))
    await until(lambda: pipeline.coordinator.request_state("r") is None)
    await stream.aclose()
    gc.collect()
    assert lost == []


async def test_an_aborted_stream_is_cancelled(make: Any) -> None:
    pipeline = await make()
    reading = asyncio.create_task(collect(pipeline.coordinator.stream("r", None), []))
    await pipeline.submitted()
    assert await pipeline.coordinator.abort("r")
    with pytest.raises(asyncio.CancelledError):
        await soon(reading)


async def test_a_reused_id_streams_under_the_callers_id(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    for _ in range(2):
        got: list[Any] = []
        reading = asyncio.create_task(collect(pipeline.coordinator.stream("r", None), got))
        wire_id = (await pipeline.submitted()).request_id
        await pipeline.chunk("text", wire_id, "a")
        await pipeline.complete("text", wire_id, 1)
        await soon(reading)
        assert [m.request_id for m in got] == ["r", "r"]


async def test_a_reader_that_does_not_read_fails_its_request(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_STREAM_BACKLOG", 10)
    pipeline = await make(terminal_stages=["text"])
    stream = pipeline.coordinator.stream("r", None)
    first = asyncio.create_task(anext(stream))
    await pipeline.submitted()
    for index in range(30):
        await pipeline.chunk("text", "r", str(index))
    await soon(first)
    assert (await soon(pipeline.stages["text"].recv_abort())).request_id == "r"
    with pytest.raises(RuntimeError, match="fell 10 chunks behind"):
        await soon(collect(stream, []))


# --- stages that go down ----------------------------------------------------------------------------


async def test_exactly_the_requests_a_dead_stage_holds_fail(make: Any) -> None:
    pipeline = await make(terminal_stages=["text"])
    held, passed, waiting = (pipeline.submit(name) for name in ("held", "passed", "waiting"))
    for _ in range(3):
        await pipeline.submitted()
    # `held` and `passed` went from first to audio; `passed` went on to text.
    for name in ("held", "passed"):
        await pipeline.progress("first", (name, "first", 0), (name, "audio", 1))
        await pipeline.progress("audio", (name, "first", -1), (name, "audio", 1))
    await pipeline.progress("audio", ("passed", "text", 1), ("passed", "audio", -1))
    await pipeline.progress("text", ("passed", "audio", -1), ("passed", "text", 1))
    await pipeline.settle()
    pipeline.coordinator.stage_down(["audio"], "stage 'audio' was killed by signal 9")
    with pytest.raises(RuntimeError, match="'audio' was killed by signal 9"):
        await soon(held)
    await pipeline.complete("text", "passed", 1)
    await pipeline.complete("text", "waiting", 2)
    assert (await soon(passed), await soon(waiting)) == (1, 2)


async def test_a_request_handed_to_a_stage_that_is_down_fails(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    pipeline.coordinator.stage_down(["audio"], "audio is gone")
    await pipeline.progress("first", ("r", "audio", 1), ("r", "first", 1))
    with pytest.raises(RuntimeError, match="audio is gone"):
        await soon(result)


async def test_new_requests_wait_until_every_stage_is_up(make: Any) -> None:
    pipeline = await make()
    pipeline.coordinator.stage_down(["audio", "text"], "restarting")
    result = pipeline.submit("r")
    await asyncio.sleep(0.02)
    assert pipeline.coordinator.request_state("r") is RequestState.PENDING
    assert pipeline.coordinator.health()["down_stages"] == {"audio": "restarting", "text": "restarting"}
    pipeline.coordinator.stage_up(["audio"])
    await asyncio.sleep(0.02)
    assert pipeline.coordinator.request_state("r") is RequestState.PENDING
    pipeline.coordinator.stage_up(["text"])
    await pipeline.submitted()
    await pipeline.complete("text", "r", 1)
    assert await soon(result) == 1


async def test_waiting_for_a_stage_has_an_end(make: Any) -> None:
    pipeline = await make(stage_down_timeout=0.05)
    pipeline.coordinator.stage_down(["audio"], "restarting")
    with pytest.raises(RuntimeError, match=r"'audio' still down after 0.05 s: restarting"):
        await soon(pipeline.coordinator.submit("r", None))


async def test_a_waiting_request_can_be_aborted(make: Any) -> None:
    pipeline = await make()
    pipeline.coordinator.stage_down(["audio"], "restarting")
    result = pipeline.submit("r")
    await asyncio.sleep(0.02)
    assert await pipeline.coordinator.abort("r")
    with pytest.raises(asyncio.CancelledError):
        await soon(result)


async def test_a_lost_pipeline_fails_everything_now_and_later(make: Any) -> None:
    pipeline = await make()
    running = pipeline.submit("r")
    await pipeline.submitted()
    pipeline.coordinator.stage_down(["audio"], "restarting")
    waiting = pipeline.submit("s")
    await asyncio.sleep(0.02)
    pipeline.coordinator.fail_all("the restart budget is spent")
    for result in (running, waiting, pipeline.submit("t")):
        with pytest.raises(RuntimeError, match="budget is spent"):
            await soon(result)
    health = pipeline.coordinator.health()
    assert (health["running"], health["error"]) == (False, "the restart budget is spent")


async def test_stopping_fails_what_is_running(make: Any) -> None:
    pipeline = await make()
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.coordinator.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await soon(result)


async def test_what_stages_still_hold_of_a_finished_request_is_aborted(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLE_S", 0.05)
    pipeline = await make(terminal_stages=["text"])
    result = pipeline.submit("r")
    await pipeline.submitted()
    await pipeline.progress("first", ("r", "text", 1), ("r", "audio", 1), ("r", "first", 1))
    await pipeline.progress("text", ("r", "first", -1), ("r", "text", 0))
    await pipeline.progress("audio", ("r", "first", -1), ("r", "audio", 1))
    await pipeline.settle()
    await pipeline.complete("text", "r", 1)
    assert await soon(result) == 1
    aborted = [(await soon(pipeline.stages["audio"].recv_abort())).request_id for _ in range(4)]
    assert "r" in aborted  # Beside the markers of `settle`.
    assert pipeline.coordinator._counters.held_by(["audio"]) == []


# --- what others may ask ----------------------------------------------------------------------------


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
    await pipeline.progress("first", spans=[("r", 0.25)])
    await pipeline.complete("text", "r", 1)
    await soon(result)
    await pipeline.progress("text", ("r", "first", -1), spans=[("r", 0.5)])
    await until(lambda: len(pipeline.coordinator.timings("r")) == 2)
    assert pipeline.coordinator.timings("r") == {"first": 0.25, "text": 0.5}
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
