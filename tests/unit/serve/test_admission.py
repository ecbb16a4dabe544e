"""Which requests run, wait, and are refused."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from waiting import rounds, until

from sglang_omni.serve.front import errors
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.admission import Admission, AdmissionLimits, Permit
from sglang_omni.serve.front.auth import Guard
from sglang_omni.serve.front.middleware import AdmissionMiddleware
from sglang_omni.serve.front.route_hints import RouteHints
from sglang_omni.serve.front.websockets import OpenWebSockets
from sglang_omni.serve.launch.fleet import router_limits
from sglang_omni.serve.metrics import Metrics

BODY_LIMIT = 100_000


class Served:
    """An application behind a gate; its requests end when they are told to."""

    def __init__(self, running: int | None, queue: int = 64, timeout: float = 1000.0) -> None:
        self.admission = Admission(AdmissionLimits(running, queue, timeout), max_body_size=BODY_LIMIT)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        app = FastAPI(
            middleware=[
                Middleware(
                    AdmissionMiddleware,
                    guard=Guard(Access()),
                    admission=self.admission,
                    metrics=Metrics(),
                    max_body_size=BODY_LIMIT,
                    websockets=OpenWebSockets(),
                )
            ]
        )

        @app.post("/run")
        async def run(request: Request) -> Response:
            await self._work((await request.body()).decode()[:10])
            return JSONResponse({})

        @app.post("/three")
        async def three(request: Request) -> Response:
            name = (await request.body()).decode()
            request.state.admitted.widen(3)
            await self._work(name)
            return JSONResponse({})

        @app.post("/stream")
        async def stream(request: Request) -> Response:
            name = (await request.body()).decode()

            async def pieces() -> AsyncIterator[bytes]:
                yield b"a"
                await self._work(name)

            return StreamingResponse(pieces())

        @app.post("/fail")
        async def fail(request: Request) -> Response:
            await request.body()
            raise RuntimeError("as told")

        @app.post("/abort_request")
        @app.get("/health")
        async def at_once() -> Response:
            return JSONResponse({})

        errors.install(app, RouteHints())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://a")

    async def _work(self, name: str) -> None:
        self.begun.append(name)
        await self.ends.setdefault(name, asyncio.Event()).wait()

    def end(self, name: str) -> None:
        self.ends.setdefault(name, asyncio.Event()).set()

    def ask(self, name: str, path: str = "/run") -> asyncio.Task[httpx.Response]:
        return asyncio.ensure_future(self.client.post(path, content=name))

    async def ask_in_order(self, *names: str) -> list[asyncio.Task[httpx.Response]]:
        asked = []
        for name in names:
            asked.append(self.ask(name))
            count = self.admission.running + self.admission.waiting
            await until(lambda: self.admission.running + self.admission.waiting > count)  # noqa: B023
        return asked


def refusal(answer: httpx.Response) -> tuple[int, str, int]:
    error = answer.json()["error"]
    assert answer.status_code == 429
    assert error["type"] == "rate_limit_error"
    return int(answer.headers["retry-after"]), error["message"], error["code"]


async def test_requests_run_in_the_order_in_which_they_came() -> None:
    served = Served(2)
    asked = await served.ask_in_order(*"abcdef")
    await until(lambda: served.begun == ["a", "b"])
    assert (served.admission.running, served.admission.waiting) == (2, 4)
    for name in "bacdef":
        served.end(name)
        await rounds()
    assert [(await each).status_code for each in asked] == [200] * 6
    assert served.begun == list("abcdef")
    assert (served.admission.running, served.admission.waiting) == (0, 0)


async def test_a_request_with_three_answers_takes_three_places() -> None:
    served = Served(2)
    wide = served.ask("w", "/three")
    await until(lambda: served.admission.running == 3)
    asked = await served.ask_in_order("a", "b", "c")
    assert (served.admission.running, served.admission.waiting, served.begun) == (3, 3, ["w"])
    served.end("w")
    await until(lambda: served.begun == ["w", "a", "b"])
    assert (served.admission.running, served.admission.waiting) == (2, 1)
    for name in "abc":
        served.end(name)
    assert [(await each).status_code for each in (wide, *asked)] == [200] * 4
    assert served.admission.running == 0


async def test_a_full_queue_refuses_before_the_body_is_read_and_does_not_keep_it() -> None:
    served = Served(1, queue=1)
    asked = await served.ask_in_order("a", "b")
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield bytes(BODY_LIMIT)

    answer = await served.client.post("/run", content=pieces())
    retry_after, message, code = refusal(answer)
    assert 1 <= retry_after <= 60
    assert message == (
        "1 requests are running (--max-concurrent-requests), 1 are waiting (--queue-size); "
        f"try again in {retry_after} s"
    )
    assert code == "rate_limit_exceeded"
    assert served.admission.refused == {"queue_full": 1, "queue_timeout": 0, "bodies": 0}
    assert (await served.client.get("/health")).status_code == 200
    assert (await served.client.post("/abort_request", json={})).status_code == 200
    for name in "ab":
        served.end(name)
    await asyncio.gather(*asked)
    assert served.begun == ["a", "b"]


async def test_without_a_queue_what_finds_no_place_is_refused() -> None:
    served = Served(1, queue=0)
    asked = await served.ask_in_order("a")
    refusal(await served.ask("b"))
    served.end("a")
    await asyncio.gather(*asked)
    served.end("c")
    assert (await served.ask("c")).status_code == 200


async def test_one_that_has_waited_too_long() -> None:
    served = Served(1, timeout=0.05)
    asked = await served.ask_in_order("a")
    assert "waited 0.05 s for its turn (--queue-timeout)" in refusal(await served.ask("b"))[1]
    served.end("a")
    await asyncio.gather(*asked)
    assert served.begun == ["a"]
    assert served.admission.refused["queue_timeout"] == 1


async def test_a_client_that_leaves_leaves_the_queue_at_once() -> None:
    served = Served(1)
    asked = await served.ask_in_order("a", "b", "c")
    asked[1].cancel()
    await until(lambda: served.admission.waiting == 1)
    served.end("a")
    await until(lambda: served.begun == ["a", "c"])
    served.end("c")
    await asyncio.gather(asked[0], asked[2])
    assert served.admission.running == 0


@asynccontextmanager
async def raw(served: Served) -> AsyncIterator[tuple[Callable[[dict[str, Any]], None], list[Any], Any]]:
    """A request whose messages the test sends by itself, as a server's sockets give them."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/run", "headers": [], "query_string": b""}
    app = served.client._transport.app  # type: ignore[attr-defined]
    running = asyncio.ensure_future(app(scope, incoming.get, send))
    yield incoming.put_nowait, sent, running
    running.cancel()


async def test_a_client_whose_connection_ends_leaves_the_queue() -> None:
    served = Served(1)
    asked = await served.ask_in_order("a")
    async with raw(served) as (say, _, running):
        say({"type": "http.request", "body": b"b", "more_body": False})
        await until(lambda: served.admission.waiting == 1)
        say({"type": "http.disconnect"})
        await asyncio.wait([running])
        assert served.admission.waiting == 0
    served.end("a")
    await asyncio.gather(*asked)
    assert served.begun == ["a"]
    assert served.admission.running == 0


async def test_an_upload_has_a_place_only_when_it_is_all_there() -> None:
    served = Served(1)
    async with raw(served) as (say, _, running):
        say({"type": "http.request", "body": b"slow", "more_body": True})
        await rounds()
        assert served.admission.running == 0
        served.end("quick")
        assert (await served.ask("quick")).status_code == 200
        say({"type": "http.request", "body": b"", "more_body": False})
        await until(lambda: served.admission.running == 1)
        served.end("slow")
        await running
        assert served.admission.running == 0


async def test_a_stream_keeps_its_place_until_its_end() -> None:
    served = Served(1)
    asked = served.ask("a", "/stream")
    await until(lambda: served.begun == ["a"])
    other = await served.ask_in_order("b")
    assert served.admission.waiting == 1
    served.end("a")
    served.end("b")
    await asyncio.gather(asked, *other)


async def test_what_fails_gives_its_place_back() -> None:
    served = Served(1)
    for _ in range(3):
        assert (await served.ask("", "/fail")).status_code == 500
        assert (await served.ask("", "/nowhere")).status_code == 404
    assert served.admission.running == 0


async def test_bodies_together_are_bounded_and_small_ones_go_through() -> None:
    served = Served(1, queue=1000)
    asked = await served.ask_in_order("a")
    large = [asyncio.ensure_future(served.client.post("/run", content=b"b" * BODY_LIMIT)) for _ in range(60)]
    await until(lambda: served.admission.refused["bodies"] > 0)
    served.end("b" * 10)
    served.end("small")
    small = served.ask("small")
    served.end("a")
    answers = await asyncio.gather(*large)
    refused = [answer for answer in answers if answer.status_code == 429]
    # Sixteen of the largest, without what is small of each.
    assert len(refused) == 60 - 16 * BODY_LIMIT // (BODY_LIMIT - 65_536)
    assert "bodies" in refusal(refused[0])[1]
    assert (await small).status_code == 200
    await asyncio.gather(*asked)
    assert (await served.client.post("/run", content=b"b" * BODY_LIMIT)).status_code == 200


def retry_after(admission: Admission) -> int:
    return int((admission.refusal("queue_full").headers or {})["retry-after"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of ``time.monotonic`` for admissions."""
    now = [1000.0]
    # Not the module's own attribute, which event loops read too.
    monkeypatch.setattr("sglang_omni.serve.front.admission.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


async def full_queue(running: int, waiting: int) -> tuple[Admission, list[asyncio.Future[Permit | None]]]:
    """An admission without room, and the requests that wait, in their order after those that run."""
    admission = Admission(AdmissionLimits(running, waiting, 1000.0))
    never = asyncio.Event()
    asked = [asyncio.ensure_future(admission.acquire(never.wait)) for _ in range(running + waiting)]
    await asyncio.sleep(0)
    assert (admission.running, admission.waiting, admission.is_full) == (running, waiting, True)
    return admission, asked


async def ended(admission: Admission, asked: list[asyncio.Future[Permit | None]], count: int) -> None:
    """Those that run longest end."""
    for _ in range(count):
        permit = await asked.pop(0)
        assert permit is not None
        admission.release(permit)
    await asyncio.sleep(0)


async def test_retry_after_is_when_half_of_the_queue_has_begun_at_its_latest_pace(clock: list[float]) -> None:
    admission, asked = await full_queue(1, 20)
    for _ in range(11):
        clock[0] += 3.0
        await ended(admission, asked, 1)
    # Nine wait: four and a half turns, and its own.
    assert admission.waiting == 9
    assert retry_after(admission) == math.ceil(5.5 * 3.0)


async def test_those_that_are_refused_are_asked_to_come_one_after_another(clock: list[float]) -> None:
    admission, asked = await full_queue(1, 20)
    for _ in range(10):
        clock[0] += 2.0
        await ended(admission, asked, 1)
    assert [retry_after(admission) for _ in range(4)] == [12, 14, 16, 18]
    # The first two may be back by now, and leave room for others.
    clock[0] += 14.0
    assert retry_after(admission) == 12
    assert [retry_after(admission) for _ in range(40)][-1] == 60


@pytest.mark.parametrize("end", ["its turn", "leaving"])
async def test_nothing_is_kept_for_refused_clients_that_have_not_come_when_the_queue_was_empty(
    clock: list[float], end: str
) -> None:
    admission, asked = await full_queue(1, 10)
    for _ in range(8):
        clock[0] += 2.0
        await ended(admission, asked, 1)
    assert [retry_after(admission) for _ in range(40)][-1] == 60
    if end == "its turn":
        await ended(admission, asked, 2)
    else:
        for turn in asked[1:]:
            turn.cancel()
        await asyncio.gather(*asked[1:], return_exceptions=True)
    assert admission.waiting == 0
    never = asyncio.Event()
    asked = [asyncio.ensure_future(admission.acquire(never.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    assert (admission.waiting, retry_after(admission)) == (3, 5)


async def test_before_any_turn_retry_after_grows_with_the_time_that_the_oldest_takes(
    clock: list[float],
) -> None:
    admission, _ = await full_queue(2, 9)
    assert retry_after(admission) == 1
    clock[0] += 6.0
    assert retry_after(admission) in (16, 17)


async def test_time_without_waiting_requests_is_no_pace(clock: list[float]) -> None:
    admission, asked = await full_queue(1, 3)
    for seconds in (1.0, 1.0, 1.0, 500.0):
        clock[0] += seconds
        await ended(admission, asked, 1)
    assert (admission.running, admission.waiting) == (0, 0)
    assert retry_after(admission) == 1
    never = asyncio.Event()
    asked = [asyncio.ensure_future(admission.acquire(never.wait)) for _ in range(4)]
    await asyncio.sleep(0)
    await ended(admission, asked, 1)
    assert retry_after(admission) == 2


async def test_a_turn_that_comes_as_the_client_leaves_is_passed_on() -> None:
    admission = Admission(AdmissionLimits(1, 10, 1000.0))
    never, left = asyncio.Event(), asyncio.Event()
    place = await admission.acquire(never.wait)
    assert place is not None
    leaving = asyncio.ensure_future(admission.acquire(left.wait))
    behind = asyncio.ensure_future(admission.acquire(never.wait))
    await rounds()
    left.set()
    admission.release(place)
    assert await leaving is None
    assert await behind is not None
    assert (admission.running, admission.waiting) == (1, 0)


async def test_any_number() -> None:
    served = Served(None)
    asked = await served.ask_in_order(*map(str, range(100)))
    assert not served.admission.is_full
    for name in range(100):
        served.end(str(name))
    assert all(answer.is_success for answer in await asyncio.gather(*asked))


@pytest.mark.parametrize(
    ("held", "given", "expected"),
    [
        ({"io": 4, "thinker": 16, "speak": 1}, {}, (21, 42, 60.0)),
        ({"a": 1, "b": 1}, {}, (16, 32, 60.0)),
        ({"thinker": 256}, {}, (256, 512, 60.0)),
        ({"thinker": 256}, {"max_concurrent_requests": 8}, (8, 16, 60.0)),
        (
            {"thinker": 256},
            {"max_concurrent_requests": 8, "queue_size": 0, "queue_timeout": 2.5},
            (8, 0, 2.5),
        ),
        ({"thinker": 256}, {"max_concurrent_requests": -1}, (None, 32, 60.0)),
    ],
)
def test_limits_of_a_pipeline(held: Any, given: Any, expected: Any) -> None:
    limits = AdmissionLimits.of_pipeline(held, given)
    assert (limits.max_running, limits.queue_size, limits.queue_timeout) == expected


def test_a_routers_limits_are_its_replicas_together() -> None:
    limits = AdmissionLimits(20, 64, 60.0).as_dict()
    together = {"max_concurrent_requests": 40, "queue_size": 128, "queue_timeout": 60.0}
    assert router_limits([limits, limits]) == together
    assert router_limits([limits, AdmissionLimits().as_dict()]) == {}
    assert router_limits([limits, {}]) == {}
    assert router_limits([]) == {}


async def test_a_client_that_cannot_be_watched_keeps_no_place() -> None:
    admission = Admission(AdmissionLimits(1, 4, 1000.0), max_body_size=BODY_LIMIT)

    async def breaks() -> None:
        raise OSError("the connection is broken")

    async def stays() -> None:
        await asyncio.Event().wait()

    place = await admission.acquire(stays)
    assert place is not None
    with pytest.raises(OSError, match="is broken"):
        await admission.acquire(breaks)
    admission.release(place)
    assert (admission.running, admission.waiting) == (0, 0)
