"""Timelines of requests as a trace file, which ui.perfetto.dev and chrome://tracing show.

The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from sglang_omni.serve.observe.timeline import Slice, Timeline, Visit, unix

_SERVER = "server"


def chrome_trace(timelines: Iterable[Timeline], process_of: Mapping[str, str]) -> dict[str, Any]:
    """The trace: a process for the server and each process of stages, and in it a track for each instance.

    Requests that are in an instance at the same time have tracks beside each other. Arrows lead from where a
    payload or a stream was sent to where it came.

    Args:
        process_of: The name of the process that an instance runs in; one without has its own name.
    """
    page = _Page()
    for timeline in sorted(timelines, key=lambda timeline: timeline.server.start):
        page.add(timeline, process_of)
    return {"traceEvents": page.events, "displayTimeUnit": "ms"}


class _Page:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        # Of each row of tracks, when each track is free again, and the number of its thread.
        self._tracks: dict[tuple[int, str], list[tuple[float, int]]] = {}
        self._threads = itertools.count(1)
        self._arrows = itertools.count(1)

    def add(self, timeline: Timeline, process_of: Mapping[str, str]) -> None:
        generation, server = timeline.generation, timeline.server
        name = generation.name
        if name is not None and name.answer is not None and name.parts[:1] == [generation.request_id]:
            answer = name.answer
            server = Slice(
                f"{answer.method} {answer.path}",
                server.start,
                max(server.end, server.start + answer.seconds),
                {"status": answer.status},
                [server],
            )
        # All parts of a request are beside each other, and each visit on a track of its own instance.
        place = self._place(_SERVER, "requests", server)
        self._slice(server, place)
        if generation.first_token is not None:
            first = unix(generation.first_token)
            self._event("i", "first token", first, place, s="t")
        places = [
            self._place(process_of.get(visit.instance, visit.instance), visit.instance, visit.slice)
            for visit in timeline.visits
        ]
        for visit, at in zip(timeline.visits, places, strict=True):
            visit.slice.attributes["request_id"] = generation.request_id
            self._slice(visit.slice, at)
        self._hops(timeline.visits, places, place)

    def _hops(self, visits: list[Visit], places: list[tuple[int, int]], server: tuple[int, int]) -> None:
        for visit, place in zip(visits, places, strict=True):
            for hop in visit.hops:
                if hop.is_sent and hop.peer == "coordinator":
                    self._arrow("result", (hop.at, place), (hop.at, server))
                elif not hop.is_sent and hop.peer == "coordinator":
                    self._arrow("request", (hop.at, server), (hop.at, place))
                elif hop.is_sent:
                    for other, there in zip(visits, places, strict=True):
                        if other.instance == hop.peer:
                            came = [h.at for h in other.hops if not h.is_sent and h.peer == visit.instance]
                            # A stream's first chunk is not reported by its receiver.
                            at = hop.at if hop.is_stream else next(iter(came), hop.at)
                            at = max(at, other.slice.start)
                            kind = "stream" if hop.is_stream else "payload"
                            self._arrow(kind, (hop.at, place), (at, there))
                            break

    def _slice(self, piece: Slice, place: tuple[int, int]) -> None:
        seconds = max(0.0, piece.end - piece.start)
        self._event("X", piece.name, piece.start, place, dur=round(seconds * 1e6, 1), args=piece.attributes)
        for inner in piece.inner:
            self._slice(inner, place)

    def _arrow(
        self, name: str, begin: tuple[float, tuple[int, int]], end: tuple[float, tuple[int, int]]
    ) -> None:
        number = next(self._arrows)
        self._event("s", name, *begin, cat="hop", id=number)
        self._event("f", name, *end, cat="hop", id=number, bp="e")

    def _event(self, phase: str, name: str, at: float, place: tuple[int, int], **more: Any) -> None:
        pid, tid = place
        self.events.append(
            {"ph": phase, "name": name, "ts": round(at * 1e6, 1), "pid": pid, "tid": tid} | more
        )

    def _place(self, process: str, row: str, piece: Slice) -> tuple[int, int]:
        """The process and the track for a slice: a track of its row that is free by then."""
        pid = self._processes.get(process)
        if pid is None:
            pid = self._processes[process] = len(self._processes) + 1
            self._name("process_name", process, pid, 0)
        tracks = self._tracks.setdefault((pid, row), [])
        for index, (free, tid) in enumerate(tracks):
            if free <= piece.start:
                tracks[index] = (piece.end, tid)
                return pid, tid
        tid = next(self._threads)
        tracks.append((piece.end, tid))
        self._name("thread_name", row if len(tracks) == 1 else f"{row} ({len(tracks)})", pid, tid)
        return pid, tid

    def _name(self, kind: str, name: str, pid: int, tid: int) -> None:
        self.events.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}})
