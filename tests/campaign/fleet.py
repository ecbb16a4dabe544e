"""Schedules of requests and faults on a whole server: a launcher, its router, two replicas and their stages.

Clients speak HTTP to the router. Faults are signals to any of the processes, and orders on the switchboard.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
from launched_server import launched_role, server

from campaign.asks import Ask, drawn_ask, text_of, with_media
from campaign.media_host import MediaHost, media_host
from campaign.playing import AT_CALLS, Event, Harm, Kind, Points, Strike, Target, drawn_strike
from campaign.processes import POINTS, STAGES, SUCCESSORS, config
from sglang_omni._core import Switchboard
from sglang_omni.config import save_config

_REPLICAS = 2
_SIZES = (0, 10, 3_000, 40_000, 300_000)
_SPAN_S = 0.6
_DEADLINE_S = 60.0
_STOPS_S = (0.1, 0.5, 1.5, 6.0)

# Points of the router's process, and of the replicas' own beside their stages'.
ROUTER_POINTS: Points = {
    "router.accept": ("delay", "error", "kill"),
    "router.connect": ("delay", "error", "kill"),
    "router.send": ("delay", "error", "kill"),
    "router.head": ("delay", "error", "kill"),
    "router.body": ("delay", "error", "kill"),
    "router.tail": ("error", "kill"),
    "router.health": ("delay", "error"),
    "router.client": ("delay", "error", "kill"),
}
SERVER_POINTS: Points = {
    "coordinator.end": AT_CALLS,
    "coordinator.stage_down": AT_CALLS,
    "supervisor.launch": (*AT_CALLS, "error"),
    "control.send": (*AT_CALLS, "partial"),
    "control.receive": AT_CALLS,
    "disk.spec": ("error",),
}
# In the replica that takes the place of one that was killed, and its stages.
SUCCESSOR_POINTS: Points = {
    **SUCCESSORS,
    "disk.lock": ("kill", "error"),
    "disk.lock.after": ("kill", "error"),
}


def drawn(seed: int, number: int) -> list[Event]:
    """The events of a schedule: the same for the same numbers."""
    draw = random.Random(f"{seed}:fleet:{number}")
    events: list[Event] = []
    for _ in range(draw.randint(4, 16)):
        ask = replace(drawn_ask(draw, STAGES, _SIZES, _SPAN_S), twice=False)
        if "hang" in ask.faults.values():
            ask = replace(ask, leaves_after=draw.uniform(0.0, 1.0), aborted_after=None)
        events.append(with_media(draw, ask))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3))):
        at = draw.choice((0.0, draw.uniform(0.0, _SPAN_S)))
        replica = f"replica {draw.randrange(_REPLICAS)}"
        stage = f"{replica} process {draw.randrange(len(STAGES) + 1)}"
        if draw.random() < 0.3:
            process = draw.choice((stage, stage, replica, "router"))
            kind: Kind = draw.choice(
                ("kill", "stop", "terminate") if process == replica else ("kill", "stop")
            )
            events.append(Harm(at, process, kind, draw.choice(_STOPS_S)))
        else:
            process, points = draw.choice(
                ((stage, POINTS), (replica, SERVER_POINTS), ("router", ROUTER_POINTS))
            )
            events.append(drawn_strike(draw, at, process, points))
            if draw.random() < 0.15:
                events.append(Harm(at + 0.1, draw.choice((stage, replica)), "kill"))
                events.append(drawn_strike(draw, at, "", SUCCESSOR_POINTS))
    return events


class Fleet(Target):
    """The running server. Its processes: ``router``, ``replica 0``, and ``replica 0 process 3``, which is a
    stage's or the one that forks them."""

    rest_s = 45.0
    stops_s = _STOPS_S

    def __init__(
        self, launcher: psutil.Process, client: httpx.AsyncClient, host: MediaHost, board: Switchboard
    ) -> None:
        super().__init__(board)
        self._launcher, self._client, self._host = launcher, client, host

    async def warm_up(self) -> None:
        """Waits until all is up, and uses it."""
        if wrong := await self.at_rest():
            raise RuntimeError(f"it is not at rest before the first schedule: {wrong}")
        if "router" not in self.processes():
            raise RuntimeError("the router's process is not found")
        self.check_points()

    def excuses(self, fired: Sequence[Strike], harms: Sequence[Harm], asks: Sequence[Ask]) -> Iterator[str]:
        harmed = [each.process for each in fired if each.is_deadly or each.point in SUCCESSOR_POINTS]
        harmed += [each.process for each in harms if each.is_deadly]
        if harmed or any("crash" in ask.faults.values() for ask in asks):
            yield from ("unavailable", "failed: unavailable", "busy")
        if "router" in harmed:
            yield from ("unreachable", "cut")
        if any(each.count(" ") == 1 for each in harmed):
            yield "cut"
        for each in fired:
            if each.action in ("error", "drop"):
                yield from ("unavailable", f"failed: {os.strerror(each.argument)}")
                if each.point == "media.connect":
                    yield "refused"
                if each.process == "router":
                    yield from ("cut", "unreachable")

    # --- requests ---------------------------------------------------------------------------------

    async def ask(self, request_id: str, ask: Ask) -> str:
        await asyncio.sleep(ask.at)
        loop = asyncio.get_running_loop()
        asking = asyncio.ensure_future(self._answer(request_id, ask))
        if ask.leaves_after is not None:
            loop.call_later(ask.leaves_after, asking.cancel)
        if ask.aborted_after is not None:
            loop.call_later(ask.aborted_after, lambda: asyncio.ensure_future(self._abort(request_id)))
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await asking
        except TimeoutError:
            return "late"
        except asyncio.CancelledError:
            return "cancelled"
        except httpx.RemoteProtocolError as error:
            return f"cut: {error}"
        except httpx.TransportError as error:
            return f"unreachable: {error!r}"

    async def _abort(self, request_id: str) -> None:
        with contextlib.suppress(httpx.HTTPError):
            await self._client.post("/abort_request", json={"rid": request_id})

    async def _answer(self, request_id: str, ask: Ask) -> str:
        inputs = ask.inputs(self._host)
        body = {"prompt": json.dumps(inputs), "stream": ask.stream}
        async with self._client.stream(
            "POST", "/v1/completions", json=body, headers={"x-request-id": request_id}
        ) as answer:
            if answer.status_code != 200 or not ask.stream:
                return _ended(answer.status_code, await answer.aread(), text_of(inputs))
            return await _streamed(answer.aiter_lines(), text_of(inputs), ask.pause)

    # --- afterwards -------------------------------------------------------------------------------

    async def wrong_now(self) -> list[str]:
        health = await self._client.get("/health")
        workers = (await self._client.get("/workers")).json()["workers"]
        found = [] if health.status_code == 200 else [f"/health: {health.status_code} {health.text}"]
        if len(workers) != _REPLICAS:
            found.append(f"{len(workers)} workers")
        found += [f"the router has {each}" for each in workers if not each["healthy"] or each["load"]]
        found += await self._wrong_in_metrics()
        if not found:
            for stream in (False, True):
                outcome = await self.ask(self.new_id("after"), Ask(0.0, 7, 40_000, stream))
                found += [] if outcome == "answered" else [f"the next request: {outcome}"]
        return found

    async def _wrong_in_metrics(self) -> list[str]:
        """Gauges of the replicas, which the router shows together, that are not zero."""
        metrics = (await self._client.get("/metrics")).text
        gauges = re.findall(r"^(sglang_omni_\w*(?:requests_running|held)\w*\{.*\}) (\S+)$", metrics, re.M)
        if len({worker for name, _ in gauges for worker in re.findall(r'worker="(\d+)"', name)}) != _REPLICAS:
            return ["/metrics does not have the gauges of all replicas"]
        return [f"{name} is {value}" for name, value in gauges if float(value)]

    def processes(self) -> dict[str, int]:
        """Those of a replica are numbered in the order of their starts."""
        found: dict[str, int] = {}
        for process in self._launcher.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if (role := launched_role(process.cmdline())) is None:
                    continue
                found[role] = process.pid
                below = sorted(process.children(), key=psutil.Process.create_time)
                found |= {f"{role} process {place}": each.pid for place, each in enumerate(below)}
        return found


def _ended(status: int, body: bytes, expected: str) -> str:
    text = body.decode(errors="replace")
    if status == 200:
        choice = json.loads(text)["choices"][0]
        if choice["finish_reason"] == "abort":
            return "cancelled"
        return "answered" if choice["text"] == expected else f"wrong: {choice}"
    kinds = {429: "busy", 500: "failed", 502: "unavailable", 503: "unavailable", 504: "unavailable"}
    return f"{kinds.get(status, 'refused')}: {text}"


async def _streamed(lines: AsyncIterator[str], expected: str, pause: float) -> str:
    said, end = "", ""
    async for line in lines:
        if end:
            if line:
                return f"wrong: {line!r} after the end"
            continue
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            end = "answered" if said == expected else f"wrong: ended after {said!r}"
            continue
        event = json.loads(data)
        if "error" in event:
            kind = "unavailable" if event["error"].get("code") in (502, 503, 504) else "failed"
            end = f"{kind}: {event['error']}"
            continue
        choice: dict[str, Any] = (
            event["choices"][0] if event["choices"] else {"text": "", "finish_reason": None}
        )
        if choice["finish_reason"] == "abort":
            return "cancelled"
        said += choice["text"]
        if not expected.startswith(said):
            return f"wrong: {said!r}"
        await asyncio.sleep(pause)
    return end or "cut: the stream ended without an end"


@contextlib.asynccontextmanager
async def running(folder: str) -> Any:
    """The server, started as a user starts it, and a client to its router."""
    board = Switchboard.open(os.environ["SGLANG_OMNI_FAULTS"])
    file = Path(folder) / "campaign.yaml"
    save_config(config(folder), file)
    options = ["--config", str(file), "--dp-size", str(_REPLICAS)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with (
        server(options, Path(folder) / "log") as (launcher, url),
        httpx.AsyncClient(base_url=url, timeout=_DEADLINE_S, limits=limits, trust_env=False) as client,
        media_host() as host,
    ):
        try:
            fleet = Fleet(launcher, client, host, board)
            await fleet.warm_up()
            yield fleet
        finally:
            board.disarm()
