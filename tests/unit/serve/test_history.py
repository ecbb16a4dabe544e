"""What the server remembers and counts of requests, as its client's observer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglang_omni.client import Client, GenerateRequest
from sglang_omni.proto import CompleteMessage, OmniRequest, StreamMessage
from sglang_omni.serve.front.request_ids import RequestName, RunningRequests
from sglang_omni.serve.metrics import Metrics
from sglang_omni.serve.observe.history import MOST_REMEMBERED, History


class Pipeline:
    """Streams three pieces of text, the last with two tokens, and fails, or hangs, if it is told to."""

    ends = "well"

    async def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[Any]:
        for text, ids in (("a", [1]), ("b", [2]), ("c", [3, 4])):
            yield StreamMessage(request_id, "s", {"text": text, "token_ids": ids})
            await asyncio.sleep(0.004)
        if self.ends == "badly":
            raise RuntimeError("no")
        if self.ends == "never":
            await asyncio.Event().wait()
        usage = {"prompt_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
        result = {"text": "abc", "finish_reason": "length", "usage": usage}
        yield CompleteMessage(request_id, "s", True, result)


class Watched:
    def __init__(self) -> None:
        self.metrics, self.running = Metrics(), RunningRequests()
        self.history = History(self.metrics, self.running)
        self.pipeline = Pipeline()
        self.client = Client(self.pipeline)  # type: ignore[arg-type]
        self.client.transport.observer = self.history

    async def ask(self, request_id: str = "r", **fields: Any) -> None:
        request = GenerateRequest(prompt="hi", stream=True, **fields)
        async for _ in self.client.generate(request, request_id):
            pass

    def values(self, name: str) -> dict[str, float]:
        found = {f.name: f for f in text_string_to_metric_families(self.metrics.render().decode())}
        return {
            s.name.removeprefix("sglang_omni_") + "".join(s.labels.values()): s.value
            for s in found[f"sglang_omni_{name}"].samples
            if "_bucket" not in s.name
        }


async def test_latencies_tokens_and_reasons_are_counted() -> None:
    watched = Watched()
    await watched.ask()
    assert watched.values("time_to_first_token_seconds")["time_to_first_token_seconds_count"] == 1
    between = watched.values("inter_token_latency_seconds")
    assert between["inter_token_latency_seconds_count"] == 2
    # The last piece has two tokens, of which each came in half the time: two waits count as one and a half.
    whole = watched.values("e2e_request_latency_seconds")["e2e_request_latency_seconds_sum"]
    assert 0.006 <= between["inter_token_latency_seconds_sum"] < whole
    assert watched.values("request_success") == {"request_success_totallength": 1}
    assert watched.values("prompt_tokens") == {"prompt_tokens_total": 7}
    assert watched.values("generation_tokens") == {"generation_tokens_total": 4}
    assert watched.values("cached_tokens") == {"cached_tokens_total": 5}


async def test_failures_and_callers_that_leave_are_known_apart() -> None:
    watched = Watched()
    watched.pipeline.ends = "badly"
    with pytest.raises(RuntimeError):
        await watched.ask("one")
    watched.pipeline.ends = "never"
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(watched.ask("two"), 0.1)
    assert watched.values("request_success") == {
        "request_success_totalerror": 1,
        "request_success_totalabort": 1,
    }
    assert [each.finish_reason for each in watched.history.since(0.0)] == ["error", "abort"]


async def test_probes_are_not_counted() -> None:
    watched = Watched()
    await watched.ask(metadata={"probe": True})
    assert watched.values("request_success") == {}
    assert watched.history.since(0.0) == []


async def test_a_request_is_found_by_each_of_its_names() -> None:
    watched = Watched()
    name = RequestName("x", "called", owner="ann")
    await watched.running.admit(name, "chosen")
    parts = await watched.running.split(name, 2)
    for part in parts:
        await watched.ask(part, owner="ann")
    watched.running.leave(name)
    for text in ("chosen", "called", "chatcmpl-chosen"):
        assert [each.request_id for each in watched.history.meant_by(text, "ann")] == list(parts), text
    assert [each.request_id for each in watched.history.meant_by(parts[1], "ann")] == [parts[1]]
    assert watched.history.meant_by("chosen", None) == watched.history.meant_by("chosen", "bob") == []
    assert watched.history.of_parts(parts, "ann")[0].arrived == name.arrived


async def test_the_latest_are_remembered() -> None:
    watched = Watched()
    for number in range(MOST_REMEMBERED + 2):
        watched.history.begin(GenerateRequest(prompt="hi"), str(number))
    kept = watched.history.since(0.0)
    assert (len(kept), kept[0].request_id) == (MOST_REMEMBERED, "2")
