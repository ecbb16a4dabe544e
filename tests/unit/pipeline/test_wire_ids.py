"""Ids that clients choose, however ill-meant: each request's outcome is set once, and is its own."""

from __future__ import annotations

import asyncio
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from coordinator_harness import Pipeline, pipelines, soon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_omni.client import Client, GenerateRequest
from sglang_omni.pipeline.coordinator import requests
from sglang_omni.pipeline.coordinator.requests import WireIds
from sglang_omni.pipeline.stage.edges.relayed import stream_key
from sglang_omni.proto import CompleteMessage, DuplicateRequest, OmniRequest, RequestError

make = pytest.fixture(pipelines)

HOSTILE = [
    "a",
    "a~1",
    "a~2",
    "a~1~2",
    "~1",
    "",
    "a:stream:first:text:0",
    "a\nb",
    "\ud800",
    "é" * 300,
    "x" * 5000,
]


async def test_no_id_takes_the_place_of_one_that_is_used_again(make: Any) -> None:
    pipeline = await make()
    first = pipeline.submit("conv-7")
    await pipeline.complete("text", (await pipeline.submitted()).request_id, "over")
    assert await soon(first) == "over"
    victim = pipeline.submit("conv-7")
    victims = (await pipeline.submitted()).request_id
    forged = [pipeline.submit(f"conv-7~{number}") for number in range(4)]
    taken = [(await pipeline.submitted()).request_id for _ in forged]
    assert len({victims, *taken}) == 5
    await pipeline.complete("text", victims, "the victim's")
    assert await soon(victim) == "the victim's"
    for wire_id, request in zip(taken, forged, strict=True):
        await pipeline.complete("text", wire_id, wire_id)
        assert await soon(request) == wire_id


async def test_two_owners_use_one_id_at_once(make: Any) -> None:
    pipeline = await make()
    coordinator = pipeline.coordinator

    def ask(owner: str | None) -> OmniRequest:
        return OmniRequest(owner, metadata={} if owner is None else {"owner": owner})

    tasks = {owner: pipeline.submit("same", ask(owner)) for owner in ("ann", "bob", None)}
    wire = {}
    for _ in tasks:
        message = await pipeline.submitted()
        wire[message.data.request.inputs] = message.request_id
    with pytest.raises(DuplicateRequest):
        await coordinator.submit("same", ask("ann"))
    assert not await coordinator.abort("same", owner="eve")
    assert await coordinator.abort("same", owner="ann")
    with pytest.raises(asyncio.CancelledError):
        await soon(tasks["ann"])
    await pipeline.progress("text", spans=[(wire["bob"], 1.0, 2.0, 0.0)])
    for owner in ("bob", None):
        await pipeline.complete("text", wire[owner], f"{owner}'s")
        assert await soon(tasks[owner]) == f"{owner}'s"
    assert coordinator.timings("same", owner="bob") == {"text": {"work": 1.0, "wait": 2.0}}
    assert coordinator.timings("same") == coordinator.timings("same", owner="ann") == {}


async def test_what_cannot_be_sent_is_no_duplicate(make: Any) -> None:
    pipeline = await make()
    deep: Any = 0
    for _ in range(600):
        deep = [deep]
    with pytest.raises(RequestError) as caught:
        await Client(pipeline.coordinator).completion(GenerateRequest(prompt={"deep": deep}, stream=False))
    assert (caught.value.status, caught.value.code) == (400, "invalid_value")


def test_wire_ids_are_unlike_each_other_and_every_key_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_REMEMBERED", 8)
    ids = WireIds()
    made = [ids.new(each) for each in HOSTILE * 3 + [f"new-{n}" for n in range(20)] * 2]
    assert len(set(made)) == len(made)
    keys = {stream_key(each, "first", "text", number) for each in made for number in range(3)}
    assert keys.isdisjoint(made)
    assert all(re.fullmatch(r"[\x20-\x7e]{1,300}", each) for each in made), made


def test_lines_of_stages_are_found_by_the_callers_id() -> None:
    ids = WireIds()
    for each in ("plain-1", "plain-1", "a/b?c", "conv~1", "x" * 256):
        assert each in ids.new(each)
    # A colon is encoded as in a URL: it ends the id in a relay's keys.
    assert ids.new("a/b:c").startswith("a/b%3Ac~")
    for each in ("plain-2", "two words", "a/b@c=d", "y" * 256):
        assert ids.new(each) == each


# --- any order of what clients may do ----------------------------------------------------------------

_ID = st.sampled_from(HOSTILE)
_OWNER = st.sampled_from([None, "ann", "bob"])
_WHICH = st.integers(0, 7)
_STEP = st.one_of(
    st.tuples(st.sampled_from(["submit", "stream"]), _ID, _OWNER),
    st.tuples(st.sampled_from(["submit", "stream"]), _ID, _OWNER),
    st.tuples(st.sampled_from(["complete", "fail", "cancel", "late", "late_failure"]), _WHICH, st.none()),
    st.tuples(st.just("abort"), _ID, _OWNER),
)


@dataclass
class Asked:
    owner: str | None
    request_id: str
    mark: int
    wire_id: str
    task: asyncio.Task[Any]


class Play:
    """The steps of one example, and what should have come of each."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.running: dict[tuple[str | None, str], Asked] = {}
        self.ended: list[Asked] = []
        self.marks = 0

    async def step(self, kind: str, what: Any, owner: str | None) -> None:
        if kind in ("submit", "stream"):
            await self.submit(what, owner, stream=kind == "stream")
        elif kind == "abort":
            asked = self.running.get((owner, what))
            assert await self.pipeline.coordinator.abort(what, owner=owner) is (asked is not None)
            if asked is not None:
                await self.was_cancelled(asked)
        elif kind.startswith("late"):
            if self.ended:
                asked = self.ended[what % len(self.ended)]
                await self.pipeline.chunk("text", asked.wire_id, "LATE")
                await self.pipeline.answer(asked.wire_id, "LATE", fails=kind == "late_failure")
        elif self.running:
            asked = list(self.running.values())[what % len(self.running)]
            if kind == "cancel":
                asked.task.cancel()
                await self.was_cancelled(asked)
            else:
                await self.answer(asked, fails=kind == "fail")

    async def submit(self, request_id: str, owner: str | None, *, stream: bool) -> None:
        self.marks += 1
        request = OmniRequest(self.marks, metadata={} if owner is None else {"owner": owner})
        if stream:
            task = asyncio.create_task(self.streamed(request_id, request))
        else:
            task = self.pipeline.submit(request_id, request)
        if (owner, request_id) in self.running:
            with pytest.raises(DuplicateRequest):
                await soon(task)
            return
        message = await self.pipeline.submitted()
        assert message.data.request.inputs == self.marks
        asked = Asked(owner, request_id, self.marks, message.request_id, task)
        self.running[owner, request_id] = asked

    async def streamed(self, request_id: str, request: OmniRequest) -> Any:
        """The result, after chunks that are all of this request's own."""
        async for message in self.pipeline.coordinator.stream(request_id, request):
            assert message.request_id == request_id
            if isinstance(message, CompleteMessage):
                return message.result
            assert message.chunk == {"text": str(request.inputs)}

    async def answer(self, asked: Asked, *, fails: bool) -> None:
        await self.pipeline.chunk("text", asked.wire_id, str(asked.mark))
        await self.pipeline.answer(asked.wire_id, asked.mark, fails=fails)
        if fails:
            with pytest.raises(RuntimeError, match=f"failed {asked.mark}$"):
                await soon(asked.task)
        else:
            assert await soon(asked.task) == asked.mark
        self.end(asked)

    async def was_cancelled(self, asked: Asked) -> None:
        with pytest.raises(asyncio.CancelledError):
            await soon(asked.task)
        self.end(asked)

    def end(self, asked: Asked) -> None:
        del self.running[asked.owner, asked.request_id]
        self.ended.append(asked)
        assert not any(each.task.done() for each in self.running.values())


async def play(steps: list[tuple[str, Any, str | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(Path(folder), terminal_stages=["text"])
        await pipeline.start()
        try:
            played = Play(pipeline)
            for step in steps:
                await played.step(*step)
            for asked in list(played.running.values()):
                await played.answer(asked, fails=False)
            wire = [asked.wire_id for asked in played.ended]
            assert len(set(wire)) == len(wire)
            assert pipeline.coordinator.health()["total_requests"] == 0
            load = pipeline.coordinator.get_load()
            assert load["completed"] + load["failed"] + load["aborted"] == len(wire)
        finally:
            await pipeline.close()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(_STEP, max_size=24))
def test_every_outcome_is_set_once_and_is_its_own(steps: list[tuple[str, Any, str | None]]) -> None:
    asyncio.run(play(steps))


@given(st.lists(st.text(alphabet="ab:~\n é", min_size=1, max_size=6), min_size=1, max_size=30))
def test_no_ids_keys_begin_as_anothers(wanted: list[str]) -> None:
    """Keys of a request's payloads are its id, a colon and what of it they are."""
    ids = WireIds()
    given = [ids.new(request_id) for request_id in wanted]
    assert len(set(given)) == len(given)
    assert not any(":" in wire_id for wire_id in given)
