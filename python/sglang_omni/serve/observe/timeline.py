"""Where requests were when, over all processes: what trace files and exported spans are made of."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_omni.serve.coordinator import AdminCoordinator
from sglang_omni.serve.observe.history import Generation

if TYPE_CHECKING:
    from sglang_omni.pipeline.coordinator.requests import RequestTrace, StageVisit


# Shorter waits are not shown.
_SHORTEST_S = 1e-4


@dataclass(slots=True)
class Slice:
    """A stretch of time. ``start`` and ``end`` in Unix time, the slices of ``inner`` within them."""

    name: str
    start: float
    end: float
    attributes: dict[str, Any] = field(default_factory=dict)
    inner: list[Slice] = field(default_factory=list)


@dataclass(slots=True)
class HopAt:
    """What an instance sent (``is_sent``) to ``peer`` or got from it at a time."""

    is_sent: bool
    peer: str
    at: float
    is_stream: bool = False


@dataclass(slots=True)
class Visit:
    """A request's time in an instance of a stage."""

    instance: str
    slice: Slice
    hops: list[HopAt]


@dataclass(slots=True)
class Timeline:
    """One request in the pipeline: what the server did with it, and its visits to stages."""

    generation: Generation
    server: Slice
    visits: list[Visit]


def timelines(generations: Iterable[Generation], coordinator: AdminCoordinator) -> Iterator[Timeline]:
    """The timelines of these requests; the slices of one that is still running end now."""
    for generation in generations:
        trace = coordinator.trace(generation.request_id, **_owned(generation.owner))
        yield Timeline(
            generation,
            _in_server(generation, trace),
            [] if trace is None else [_visit(visit) for visit in sorted(trace.visits, key=lambda v: v.began)],
        )


def unix(moment: float) -> float:
    """Unix time of a moment of ``time.monotonic``."""
    return time.time() - time.monotonic() + moment


def _owned(owner: str | None) -> dict[str, str]:
    return {} if owner is None else {"owner": owner}


def _in_server(generation: Generation, trace: RequestTrace | None) -> Slice:
    start = unix(generation.arrived)
    ended = time.monotonic() if generation.ended is None else generation.ended
    whole = Slice(generation.task, start, unix(ended), {"request_id": generation.request_id})
    usage, attributes = generation.usage, whole.attributes
    if generation.model:
        attributes["model"] = generation.model
    if generation.finish_reason is not None:
        attributes["finish_reason"] = generation.finish_reason
    if generation.first_token is not None:
        attributes["time_to_first_token"] = generation.first_token - generation.arrived
    if usage is not None:
        attributes |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    began = unix(generation.began)
    if generation.began > generation.arrived:
        whole.inner.append(Slice("received, waits for a place", start, began))
    if trace is not None:
        end = whole.end if trace.ended is None else min(max(trace.ended, began), whole.end)
        pipeline = Slice("pipeline", began, end, {"state": trace.state.value})
        if trace.sent is not None and trace.sent > began:
            pipeline.inner.append(Slice("waits for the pipeline", began, min(trace.sent, end)))
        whole.inner.append(pipeline)
    return whole


def _visit(visit: StageVisit) -> Visit:
    start = visit.began
    end = start + visit.work + visit.wait
    whole = Slice(visit.instance, start, end, {"work_s": visit.work, "wait_s": visit.wait})
    if visit.detail is None:
        return Visit(visit.instance, whole, [])
    steps, ready = visit.detail["steps"], visit.detail["ready"]

    def within(offset: float) -> float:
        return min(start + max(0.0, offset), end)

    first = steps[0]["start"] if steps else visit.work + visit.wait
    if ready is not None and ready > _SHORTEST_S:
        whole.inner.append(Slice("waits for input", start, within(ready)))
    if ready is not None and steps and first - ready > _SHORTEST_S:
        whole.inner.append(Slice("queue", within(ready), within(first)))
    at = within(first)
    for step in steps:
        # Steps of one request do not overlap but for the clocks' grain.
        began, at = max(at, within(step["start"])), within(step["start"] + step["seconds"])
        attributes = {"batch_size": round(step["batch"], 2)} | (
            {"steps": step["steps"]} if step["steps"] > 1 else {}
        )
        name = f"{step['steps']} steps" if step["steps"] > 1 else step["kind"]
        whole.inner.append(Slice(name, began, max(began, at), attributes))
    hops = [
        HopAt(hop["way"] == "to", hop["peer"], within(hop["at"]), hop["stream"])
        for hop in visit.detail["hops"]
    ]
    return Visit(visit.instance, whole, hops)
