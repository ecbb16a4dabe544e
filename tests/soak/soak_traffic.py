"""A little traffic of all sorts to a server whose stages are killed now and then, each answer judged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
from answer_checks import WrongAnswer, check, has_failed
from launched_server import Roles, described
from request_mix import Mix

# A stage loads its model again, on a machine that may have other work.
RESTART_S = 240.0
# Of what is killed, so much longer than it is back may a request still be its victim.
AFTER_S = 2.0
# How long a client that leaves waits, and one that aborts.
LONGEST_WAIT_S = 2.0
# Statuses that a request may have while a stage is away.
AWAY = (502, 503, 504)

_AWAY_STAGES = ("down_stages", "hung_stages", "unserved_stages")

_CHAT = "/v1/chat/completions"
_HUGE = b"POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\ncontent-length: 99999999999\r\n\r\n"
# Bodies, where they are sent, and the status with which they are refused.
_MALFORMED: list[tuple[str, bytes, int]] = [
    (_CHAT, b'{"messages": [', 400),
    (_CHAT, b'{"messages": "hello"}', 400),
    (_CHAT, b'{"messages": [{"role": "user", "content": "hello"}], "temprature": 1}', 400),
    (_CHAT, b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10000000}', 400),
    (_CHAT, b'{"messages": [{"role": "user", "content": "hello"}], "model": "another"}', 404),
    ("/v1/audio/speech", b'{"input": ""}', 400),
    ("/v1/audio/speech", b'{"input": "hello", "response_format": "midi"}', 400),
    ("/v1/nothing", b"{}", 404),
    # Without a path: what is sent in place of a request.
    ("", b"nonsense\r\n\r\n", 400),
    ("", _HUGE, 413),
]


class Kills:
    """Kills processes of a server's stages, and sees that others take their places.

    Attributes:
        happened: What was killed, and how many seconds later all was well again.
        problems: What did not come back.
    """

    def __init__(self, roles: Roles, client: httpx.AsyncClient, draw: random.Random) -> None:
        self.happened: list[tuple[str, float]] = []
        self.problems: list[str] = []
        self._roles, self._client, self._draw = roles, client, draw
        # When each harm ended; the end of one that goes on is infinite.
        self._last_end = -1.0

    def disturbed(self, since: float) -> bool:
        """True if a stage was away at any time from ``since`` until now."""
        return self._last_end >= since

    async def run(self, every: float, until: float) -> None:
        """One kill after another, ``every`` seconds apart, that are over at ``until``."""
        while time.monotonic() + every + RESTART_S / 2 < until:
            await asyncio.sleep(every)
            await self._kill()

    async def _kill(self) -> None:
        present = await self._roles.present()
        stages = {role: process for role, process in present.items() if self._roles.is_stage(process)}
        # The first replica's live through the whole run, so that what they have can be compared.
        last = max(role.partition(" of ")[2] for role in stages)
        role = self._draw.choice(sorted(role for role in stages if role.endswith(last)))
        killed = stages[role].pid
        began = time.monotonic()
        self._last_end = float("inf")
        os.kill(killed, signal.SIGKILL)
        # Its supervisor may not have seen its death yet.
        await asyncio.sleep(1.0)
        try:
            async with asyncio.timeout(RESTART_S):
                while not await self._is_well(role, killed):
                    await asyncio.sleep(1.0)
        except TimeoutError:
            self.problems.append(f"{role} was killed and is not back after {RESTART_S:.0f} s")
        took = time.monotonic() - began
        self.happened.append((role, took))
        print(f"killed {role}: all was well again after {took:.1f} s", flush=True)
        self._last_end = time.monotonic() + AFTER_S

    async def _is_well(self, role: str, killed: int) -> bool:
        """True if the role has another process, and all is healthy."""
        present = await self._roles.present()
        if role not in present or present[role].pid == killed:
            return False
        with contextlib.suppress(httpx.HTTPError):
            return not await unwell(self._client)
        return False


async def unwell(client: httpx.AsyncClient) -> str:
    """What a server's health check, its router's list of workers, or a replica reports; empty if all is well.

    A fleet is healthy while its replicas are up, of which each knows its own stages.
    """
    health = await client.get("/health", timeout=60)
    if health.json()["status"] != "healthy":
        return f"health: {health.text}"
    workers = await client.get("/workers", timeout=60)
    if workers.status_code == 200 and not all(each["healthy"] for each in workers.json()["workers"]):
        return f"workers: {workers.text}"
    away = [replica["health"][name] for replica in await described(client) for name in _AWAY_STAGES]
    return f"stages: {away}" if any(away) else ""


class PacedTraffic:
    """
    Attributes:
        outcomes: How requests ended, and how many of them, by their kind.
        problems: What should not have been.
    """

    def __init__(self, url: str, client: httpx.AsyncClient, mix: Mix, kills: Kills, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.slowest = 0.0
        self._url, self._client, self._mix, self._kills = url, client, mix, kills
        self._draw = random.Random(seed)
        self._numbers = itertools.count()

    async def run(self, every: float, until: float, has_time: Callable[[], bool]) -> None:
        """Requests at random times, ``every`` seconds apart in the mean, but none unless ``has_time``."""
        kinds = itertools.cycle(self._mix.kinds)
        ways = {self._ask: 12, self._leave: 2, self._abort: 2, self._ask_two: 2, self._send_nonsense: 2}
        async with asyncio.TaskGroup() as tasks:
            while (gap := self._draw.expovariate(1 / every)) < until - time.monotonic():
                await asyncio.sleep(gap)
                if has_time():
                    (way,) = self._draw.choices(list(ways), list(ways.values()))
                    tasks.create_task(self._judge(way, next(kinds)))

    async def _judge(self, way: Callable[[str], Awaitable[str]], kind: str) -> None:
        began = time.monotonic()
        name = kind if way == self._ask else f"{kind}, {way.__name__.strip('_')}"
        try:
            outcome = await way(kind)
        except (WrongAnswer, httpx.HTTPError, OSError) as exc:
            outcome = f"{type(exc).__name__}: {exc}"
            if not self._kills.disturbed(began) or isinstance(exc, WrongAnswer):
                self.problems.append(f"{name}: {outcome}")
                print(f"WRONG: {self.problems[-1]}", flush=True)
            outcome = type(exc).__name__
        self.outcomes[f"{name}: {outcome}"] += 1
        self.slowest = max(self.slowest, time.monotonic() - began)

    async def _ask(self, kind: str) -> str:
        began = time.monotonic()
        call = self._mix.draw(kind)
        answer = await self._client.post(call.path, **call.body)
        if answer.status_code == 200 and not has_failed(answer.content):
            check(kind, answer.content)
            return "answered"
        is_excused = answer.status_code in (200, *AWAY) and self._kills.disturbed(began)
        if not is_excused:
            raise WrongAnswer(f"{answer.status_code} {answer.content[-300:]!r}")
        return f"lost with {answer.status_code}"

    async def _ask_two(self, kind: str) -> str:
        ended = await asyncio.gather(self._ask(kind), self._ask(self._draw.choice(self._mix.kinds)))
        return " and ".join(sorted(set(ended)))

    async def _leave(self, kind: str) -> str:
        """Goes before there is an answer, or within it."""
        call = self._mix.draw(kind)

        async def read() -> None:
            async with self._client.stream("POST", call.path, **call.body) as answer:
                async for _ in answer.aiter_raw():
                    if self._draw.random() < 0.3:
                        return

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(read(), self._draw.uniform(0, LONGEST_WAIT_S))
        return "left"

    async def _abort(self, kind: str) -> str:
        began = time.monotonic()
        request_id = f"soak-{next(self._numbers)}"
        call = self._mix.draw(kind)
        body: dict[str, Any] = {name: dict(fields) for name, fields in call.body.items()}
        body["json" if "json" in body else "data"]["request_id"] = request_id
        asking = asyncio.ensure_future(self._client.post(call.path, **body))
        await asyncio.sleep(self._draw.uniform(0, LONGEST_WAIT_S))
        ended = await self._client.post("/abort_request", json={"request_id": request_id})
        answer = await asking
        may_be = (200, 499, *(AWAY if self._kills.disturbed(began) else ()))
        if answer.status_code not in may_be or ended.status_code != 200:
            raise WrongAnswer(f"{answer.status_code} {answer.content[-300:]!r}, abort {ended.status_code}")
        return f"{answer.status_code} after an abort"

    async def _send_nonsense(self, kind: str) -> str:
        path, body, status = self._draw.choice(_MALFORMED)
        if not path:
            found, answer = await self._send_raw(body)
        else:
            headers = {"content-type": "application/json"}
            received = await self._client.post(path, content=body, headers=headers)
            found, answer = received.status_code, received.content
        try:
            is_error = bool(json.loads(answer)["error"]["message"])
        except (ValueError, LookupError, TypeError):
            is_error = False
        if found != status or not is_error:
            raise WrongAnswer(f"{path} {body[:100]!r} is answered {found} {answer[:300]!r}")
        return f"{status}"

    async def _send_raw(self, head: bytes) -> tuple[int, bytes]:
        """Status and body of what is answered to bytes that no client would send."""
        split = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(split.hostname, split.port)
        try:
            writer.write(head)
            answer = await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()
        first, _, body = answer.partition(b"\r\n\r\n")
        return int(first.split(b" ")[1]), body
