"""OmniScheduler over a real engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scheduler_runs import running
from text_engines import text_engine
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler

PROMPT = [5, 9, 2, 77, 31]


class Stage:
    """The callbacks of a stage, and a scheduler's outputs."""

    def __init__(self, checkpoint: TinyCheckpoint, **options: Any) -> None:
        self.aborted: list[str] = []
        self.first_tokens = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.engine = text_engine(checkpoint.path, page_size=4, **options)
        self.scheduler = OmniScheduler(
            self.engine, self.build, self.result, self.stream, abort_callback=self.aborted.append
        )

    def build(self, payload: StagePayload) -> EngineRequest:
        sampling = RequestSampling.from_params(payload.request.params)
        return EngineRequest(payload.request_id, payload.data, sampling)

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        return StagePayload(payload.request_id, payload.request, request.output_token_ids)

    def stream(
        self, payload: StagePayload, request: EngineRequest, new: list[int]
    ) -> list[OutgoingMessage] | None:
        self.first_tokens.set()
        self.may_go_on.wait(60)
        if payload.request.metadata.get("fails"):
            raise OSError("no room for chunks")
        return (
            [OutgoingMessage(payload.request_id, "stream", new)] if payload.request.params["stream"] else None
        )

    def submit(self, request_id: str, prompt: Any = PROMPT, *, fails: bool = False, **params: Any) -> None:
        request = OmniRequest(None, {"temperature": 0, "stream": False, **params}, {"fails": fails})
        self.scheduler.inbox.put(
            IncomingMessage(request_id, "new_request", StagePayload(request_id, request, prompt))
        )

    def next(self) -> OutgoingMessage:
        return self.scheduler.outbox.get(timeout=60)


@pytest.fixture
def stage(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> Iterator[Stage]:
    stage = Stage(tiny_checkpoint("llama"), max_total_tokens=400)
    with running(stage.scheduler):
        yield stage


def test_results_and_streams(stage: Stage, tiny_checkpoint: Callable[..., TinyCheckpoint]) -> None:
    expected = tiny_checkpoint("llama").greedy(PROMPT, 12)
    stage.submit("streamed", stream=True, max_new_tokens=12)
    stage.submit("whole", max_new_tokens=12)

    messages = [stage.next() for _ in range(14)]

    chunks = [m.data for m in messages if m.type == "stream"]
    results = {m.request_id: m.data.data for m in messages if m.type == "result"}
    assert chunks == [[token] for token in expected]
    assert results == {"streamed": expected, "whole": expected}
    assert messages.index(next(m for m in messages if m.type == "result")) >= 12


@pytest.mark.parametrize(
    ("prompt", "params", "field", "text"),
    [
        (list(range(190)) * 2, {}, "prompt", "the prompt has 380 tokens, but the model's context holds 256"),
        ([], {}, "prompt", "empty"),
        ([5, 199], {}, "prompt_token_ids", "between 0 and 198"),
        (PROMPT, {"temperature": float("nan")}, "temperature", "finite"),
    ],
)
def test_a_bad_request_is_its_own_error(
    stage: Stage, prompt: list[int], params: dict[str, Any], field: str, text: str
) -> None:
    stage.submit("bad", prompt, **params)
    stage.submit("good", max_new_tokens=3)

    bad, good = stage.next(), stage.next()

    assert isinstance(bad.data, RequestError)
    assert (bad.request_id, bad.type, bad.data.param) == ("bad", "error", field)
    assert text in str(bad.data)
    assert (good.request_id, good.type) == ("good", "result")


def test_an_abort_frees_the_pages_and_gives_no_result(stage: Stage) -> None:
    stage.may_go_on.clear()
    stage.submit("long", max_new_tokens=250, ignore_eos=True)
    assert stage.first_tokens.wait(60)
    stage.scheduler.abort("long")
    stage.may_go_on.set()
    stage.submit("next", max_new_tokens=2)

    message = stage.next()

    assert (message.request_id, message.type) == ("next", "result")
    assert stage.aborted == ["long"]
    assert stage.engine.stats()["kv_used_tokens"] == 0


def test_a_callback_that_raises_fails_its_request_only(stage: Stage) -> None:
    stage.submit("fails", fails=True, max_new_tokens=5)
    stage.submit("goes on", max_new_tokens=5)

    messages = {m.request_id: m for m in (stage.next(), stage.next())}

    assert isinstance(messages["fails"].data, OSError)
    assert messages["goes on"].type == "result"
    assert stage.engine.stats()["kv_used_tokens"] == 0


def test_a_step_that_raises_fails_what_was_running(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any) -> None:
        raise MemoryError("no memory for this batch")

    with monkeypatch.context() as patch:
        patch.setattr(stage.engine.runner, "execute", explode)
        stage.submit("unlucky", max_new_tokens=5)
        message = stage.next()
    stage.submit("after", max_new_tokens=2)

    assert (message.request_id, message.type) == ("unlucky", "error")
    assert isinstance(message.data, MemoryError)
    assert stage.next().type == "result"


def test_flushed_prefixes_are_computed_again(stage: Stage) -> None:
    """A prompt's pages are reused until the cache is flushed."""

    def cached(request_id: str) -> int:
        build = stage.build

        def watched(payload: StagePayload) -> EngineRequest:
            request = build(payload)
            requests.append(request)
            return request

        requests: list[EngineRequest] = []
        stage.scheduler._build_request = watched
        stage.submit(request_id, max_new_tokens=2)
        assert stage.next().type == "result"
        stage.scheduler._build_request = build
        return requests[0].cached_tokens

    assert cached("first") == 0
    assert cached("again") == 4
    stage.scheduler.flush_cache()
    assert cached("flushed") == 0


def test_a_request_may_be_followed_by_another(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> None:
    stage = Stage(tiny_checkpoint("llama"), max_total_tokens=400)

    def follow_up(payload: StagePayload, request: EngineRequest) -> EngineRequest | None:
        # The one that follows goes on where the first stopped; a wrong one is refused by the engine.
        if request.prompt_token_ids != PROMPT:
            return None
        prompt = payload.request.params.get("follower") or PROMPT + request.output_token_ids
        return EngineRequest(payload.request_id, prompt, request.sampling)

    stage.scheduler = OmniScheduler(
        stage.engine, stage.build, stage.result, stage.stream, follow_up=follow_up
    )
    expected = tiny_checkpoint("llama").greedy(PROMPT, 8)
    with running(stage.scheduler):
        stage.submit("whole", stream=True, max_new_tokens=4)
        messages = [stage.next() for _ in range(9)]
        assert [message.data for message in messages[:8]] == [[token] for token in expected]
        assert messages[8].data.data == expected[4:]
        # A follower that the engine refuses is that request's error; the next request is answered.
        stage.submit("refused", follower=[-1], max_new_tokens=2)
        answer = stage.next()
        assert (answer.request_id, answer.type) == ("refused", "error")
        assert answer.data.param == "prompt_token_ids"
        stage.submit("next", max_new_tokens=4)
        assert stage.next().data.data == expected[4:]
    assert stage.engine.stats()["kv_used_tokens"] == 0
