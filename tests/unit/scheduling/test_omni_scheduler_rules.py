"""OmniScheduler and its engine: incoming streams, held requests, faults, aborts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_runs import running

from sglang_omni.engines.request import EngineRequest, FinishReason
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler

WAIT_S = 60


class EchoEngine:
    """Answers a request with its prompt, a token a step; a negative token waits until it is replaced.

    ``room`` requests run at a time, each in a slot that it holds until it is over.
    """

    def __init__(self, room: int = 8) -> None:
        self.room = room
        self.waiting: dict[str, EngineRequest] = {}
        self.slots: dict[str, EngineRequest] = {}
        self.steps = 0
        self.stepped: list[str] = []
        self.flushes = 0
        self.before_step: Callable[[], None] = lambda: None
        self.admit: Callable[[EngineRequest], None] = lambda request: None

    @property
    def has_work(self) -> bool:
        waiting = list(self.waiting.values())[: self.room - len(self.slots)]
        return any(map(self._is_ready, [*self.slots.values(), *waiting]))

    @property
    def running(self) -> list[EngineRequest]:
        return list(self.slots.values())

    def add(self, request: EngineRequest) -> None:
        self.waiting[request.request_id] = request

    def abort(self, request_id: str) -> EngineRequest | None:
        request = self.waiting.pop(request_id, None) or self.slots.pop(request_id, None)
        if request is not None:
            request.finish_reason = "abort"
        return request

    def step(self) -> list[EngineRequest]:
        self.steps += 1
        for request_id in list(self.waiting)[: self.room - len(self.slots)]:
            self.admit(self.waiting[request_id])
            self.slots[request_id] = self.waiting.pop(request_id)
        self.before_step()
        advanced = [request for request in self.slots.values() if self._is_ready(request)]
        self.stepped = [request.request_id for request in advanced]
        for request in advanced:
            request.output_token_ids.append(request.prompt_token_ids[len(request.output_token_ids)])
            if len(request.output_token_ids) == len(request.prompt_token_ids):
                request.finish_reason = "stop"
                del self.slots[request.request_id]
        return advanced

    def flush_cache(self) -> None:
        self.flushes += 1

    def stats(self) -> dict[str, int]:
        return {"num_running_reqs": len(self.slots), "num_queue_reqs": len(self.waiting)}

    @staticmethod
    def _is_ready(request: EngineRequest) -> bool:
        return request.prompt_token_ids[len(request.output_token_ids)] >= 0


class Stage:
    """A running scheduler over an EchoEngine, whose stream handler fills in missing tokens."""

    def __init__(self) -> None:
        self.engine = EchoEngine()
        self.aborted: list[str] = []
        self.reason: FinishReason | None = None
        self.scheduler = OmniScheduler(
            self.engine,
            self.build,
            lambda payload, request: StagePayload(
                payload.request_id, payload.request, (request.output_token_ids, request.finish_reason)
            ),
            stream_chunk_handler=self.take,
            stream_done_handler=lambda request, source: self.reason,
            follow_up=self.following,
            abort_callback=self.on_abort,
        )

    def build(self, payload: StagePayload) -> EngineRequest | Future[EngineRequest]:
        if payload.data is None:
            raise KeyError("no prompt")
        if isinstance(payload.data, Future):
            return payload.data
        return EngineRequest(payload.request_id, list(payload.data))

    @staticmethod
    def following(payload: StagePayload, request: EngineRequest) -> EngineRequest | None:
        """After a request that ends with 100 comes one with its first token, after 101 an error."""
        match request.output_token_ids[-1:]:
            case [100]:
                return EngineRequest(payload.request_id, [request.output_token_ids[0], -1])
            case [101]:
                raise RequestError("nothing can follow")
        return None

    @staticmethod
    def take(request: EngineRequest, token: int) -> None:
        request.prompt_token_ids[request.prompt_token_ids.index(-1)] = token

    def on_abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id == "cursed":
            raise OSError("the callback failed")

    def submit(self, request_id: str, prompt: list[int] | Future[EngineRequest] | None) -> None:
        self.put(request_id, "new_request", StagePayload(request_id, OmniRequest(None), prompt))

    def put(self, request_id: str, type: Any, data: Any = None) -> None:
        self.scheduler.inbox.put(IncomingMessage(request_id, type, data))

    def next(self) -> OutgoingMessage:
        return self.scheduler.outbox.get(timeout=WAIT_S)

    def result(self) -> tuple[str, Any]:
        message = self.next()
        assert message.type == "result", message.data
        return message.request_id, message.data.data

    def settle(self) -> None:
        """Waits until all earlier messages are done."""
        self.submit("settle", [0])
        assert self.result()[0] == "settle"


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    with running(stage.scheduler):
        yield stage


def test_what_streams_in_before_the_request_waits_for_it(stage: Stage) -> None:
    stage.put("r", "stream_chunk", 7)
    stage.put("r", "stream_chunk", 8)
    stage.settle()
    stage.submit("r", [1, -1, -1, -1])
    stage.put("r", "stream_chunk", 9)

    assert stage.result() == ("r", ([1, 7, 8, 9], "stop"))


def test_a_request_that_is_built_later_keeps_no_other_waiting(stage: Stage) -> None:
    later: Future[EngineRequest] = Future()
    stage.submit("later", later)
    stage.put("later", "stream_chunk", 9)
    stage.submit("now", [1, 2])
    assert stage.result() == ("now", ([1, 2], "stop"))
    assert not stage.engine.has_work

    later.set_result(EngineRequest("later", [3, -1]))
    assert stage.result() == ("later", ([3, 9], "stop"))


def test_a_request_that_cannot_be_built_later_is_its_own_error(stage: Stage) -> None:
    later: Future[EngineRequest] = Future()
    stage.submit("later", later)
    later.set_exception(RequestError("regex: nothing matches"))
    message = stage.next()
    assert (message.request_id, message.type, str(message.data)) == (
        "later",
        "error",
        "regex: nothing matches",
    )
    stage.settle()


def test_a_request_that_is_aborted_before_it_is_built_never_runs(stage: Stage) -> None:
    later: Future[EngineRequest] = Future()
    stage.submit("later", later)
    stage.scheduler.abort("later")
    stage.settle()
    later.set_result(EngineRequest("later", [3]))
    stage.settle()
    assert stage.aborted == ["later"]
    assert not stage.engine.has_work


def test_a_stream_that_had_ended_before_the_request_came_ends_it(stage: Stage) -> None:
    stage.reason = "stop"
    stage.put("r", "stream_chunk", 7)
    stage.put("r", "stream_done", "source")
    stage.submit("r", [1, -1, -1])

    assert stage.result() == ("r", ([], "stop"))
    assert stage.engine.stats() == {"num_running_reqs": 0, "num_queue_reqs": 0}


def test_a_request_goes_on_as_another(stage: Stage) -> None:
    stage.submit("r", [5, 100])
    stage.submit("wrong", [5, 101])
    message = stage.next()
    assert (message.request_id, message.type, str(message.data)) == ("wrong", "error", "nothing can follow")
    stage.settle()
    assert not stage.scheduler.engine.has_work, "it waits for its second token"
    stage.put("r", "stream_chunk", 9)
    assert stage.result() == ("r", ([5, 9], "stop"))
    stage.submit("left", [5, 100])
    stage.settle()
    stage.scheduler.abort("left")
    stage.settle()
    assert stage.aborted == ["wrong", "left"]
    assert stage.engine.stats() == {"num_running_reqs": 0, "num_queue_reqs": 0}


@pytest.mark.parametrize("end", ["abort", "finish", "fail"])
def test_nothing_is_kept_for_a_request_that_is_over(stage: Stage, end: str) -> None:
    if end == "abort":
        stage.put("r", "stream_chunk", 7)
        stage.scheduler.abort("r")
    elif end == "finish":
        stage.submit("r", [1])
        stage.result()
    else:
        stage.submit("r", None)
        assert stage.next().type == "error"
    stage.put("r", "stream_chunk", 8)
    stage.settle()

    assert stage.scheduler._early == {}


def test_too_much_ahead_of_its_request_is_that_requests_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_omni.scheduling.omni_scheduler._MAX_EARLY", 3)
    for token in range(6):
        stage.put("r", "stream_chunk", token)

    message = stage.next()
    stage.settle()

    assert (message.request_id, message.type) == ("r", "error")
    assert "3 stream messages came before the payload" in str(message.data)
    assert stage.scheduler._early == {}


def test_a_streams_end_may_end_a_request_with_what_it_has(stage: Stage) -> None:
    stage.submit("goes on", [1, -1])
    stage.submit("ends", [1, 2, -1, 4])
    stage.settle()
    stage.put("goes on", "stream_done", "source")
    stage.settle()
    stage.reason = "length"
    stage.put("ends", "stream_done", "source")

    assert stage.result() == ("ends", ([1, 2], "length"))
    stage.put("goes on", "stream_chunk", 5)
    assert stage.result() == ("goes on", ([1, 5], "stop"))
    assert stage.engine.slots == {}


def test_a_request_that_is_ended_early_gives_out_the_text_held_back_for_its_stop_string() -> None:
    text = SimpleNamespace(is_finished=False)
    text.finish = lambda: setattr(text, "is_finished", True)
    request = EngineRequest("r", [1], detokenizer=text)

    request.finish("stop")

    assert (request.finish_reason, text.is_finished) == ("stop", True)


def test_a_scheduler_with_nothing_but_held_requests_sleeps_until_a_chunk_comes(stage: Stage) -> None:
    stage.submit("held", [1, -1, 3])
    stage.settle()
    steps = stage.engine.steps
    # Each of these wakes the scheduler, but gives the engine no work.
    for _ in range(5):
        stage.scheduler.abort("somebody else")
    stage.put("held", "stream_chunk", 2)

    assert stage.result() == ("held", ([1, 2, 3], "stop"))
    assert stage.engine.steps == steps + 2


def test_a_stage_that_takes_no_stream_says_so() -> None:
    engine = EchoEngine()
    scheduler = OmniScheduler(
        engine, lambda payload: EngineRequest(payload.request_id, [-1]), lambda payload, request: payload
    )
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", OmniRequest(None), None)))
    scheduler.inbox.put(IncomingMessage("r", "stream_chunk", 7))
    scheduler.stop()
    scheduler.start()

    message = scheduler.outbox.get(timeout=WAIT_S)
    assert (message.request_id, message.type) == ("r", "error")
    assert "takes no stream" in str(message.data)
    assert engine.waiting == {}


def test_a_failed_step_takes_only_what_was_running_in_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def explode() -> None:
        stage.engine.before_step = lambda: None
        raise MemoryError("no memory for this batch")

    stage.engine.room = 2
    for name in ("a", "b"):
        stage.submit(name, [1, -1])
    stage.submit("waits", [1, 2])
    stage.submit("waits too", [3])
    # The first two are held, and the others stay in line.
    stage.put("nobody", "stream_done")
    stage.engine.before_step = explode
    stage.put("a", "stream_chunk", 2)

    messages = [stage.next() for _ in range(4)]

    assert [(m.request_id, m.type) for m in messages] == [
        ("a", "error"),
        ("b", "error"),
        ("waits too", "result"),
        ("waits", "result"),
    ]
    assert isinstance(messages[0].data, MemoryError)
    assert stage.engine.slots == stage.engine.waiting == {}
    assert "an engine step failed, and with it the requests a, b" in caplog.text


def test_a_step_that_fails_before_any_request_runs_is_not_tried_for_ever(stage: Stage) -> None:
    def refuse(request: EngineRequest) -> None:
        stage.engine.admit = lambda request: None
        raise ValueError("cannot take it in")

    stage.engine.admit = refuse
    stage.submit("r", [1])

    message = stage.next()
    assert (message.request_id, message.type) == ("r", "error")
    assert stage.engine.waiting == {}
    stage.settle()


def test_an_abort_frees_memory_before_its_callback_whose_failure_does_no_harm(stage: Stage) -> None:
    stage.submit("cursed", [1, -1])
    stage.submit("other", [1, -1])
    stage.scheduler.abort("cursed")
    stage.put("other", "stream_chunk", 2)

    assert stage.result() == ("other", ([1, 2], "stop"))
    assert stage.aborted == ["cursed"]
    assert stage.engine.slots == stage.engine.waiting == {}


def test_a_flush_reaches_the_engine(stage: Stage) -> None:
    stage.scheduler.flush_cache()
    stage.settle()

    assert stage.engine.flushes == 1


def test_it_imports_where_sglang_cannot() -> None:
    code = (
        "import sys; sys.modules['sglang'] = None\n"
        "from sglang_omni.scheduling.omni_scheduler import OmniScheduler\n"
        "assert not any(name.startswith('sglang.') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_S)


def test_a_step_is_the_work_of_the_requests_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    stage = Stage()
    stage.engine.room = 1  # so that the second request waits for the first
    stage.engine.before_step = lambda: now.__setitem__(0, now[0] + 1.0)
    records = stage.scheduler.work_clock.records = {}
    for request_id, prompt in (("a", [1, -1, 3]), ("b", [1])):
        records[request_id] = SimpleNamespace(work=0.0)
        stage.submit(request_id, prompt)
    stage.put("a", "stream_chunk", 2)
    seconds = {}
    with running(stage.scheduler):
        for _ in range(2):
            request_id, _ = stage.result()
            seconds[request_id] = records.pop(request_id).work
    assert seconds == {"a": 3.0, "b": 1.0}
