"""How soon the router finds a worker that hangs, and whether it takes a busy one for hung.

    python benches/hung_workers.py                                   # eight minutes
    python benches/hung_workers.py --whole-prompts --minutes 2

Four workers read prompts at a fixed rate, one at a time, and answer with tokens at a fixed pace. While one
reads, its streams go on, as with chunked prefill; with ``--whole-prompts`` it sends nothing to anyone. Now
and then one pauses for up to 1.5 s, as a collection of garbage or a compilation makes it. First nobody hangs:
every verdict is a wrong one. Then the engine of a worker stops, while its health check goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from measure import progress

from sglang_omni._core import RouterServer
from sglang_omni.router import RouterConfig

CHARS_A_SECOND = 20_000
TOKEN_S = 0.05
# Prompts that take 0.01 to 10 s to be read. Long ones are rare: none may have been seen when one comes.
LENGTHS, WEIGHTS = (200, 2_000, 20_000, 200_000), (600, 340, 58, 2)
WORKERS = 4
TRIALS = 6


class Engine:
    """A worker whose prompts are read one after the other."""

    def __init__(self, is_chunked: bool) -> None:
        self.is_chunked = is_chunked
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.reading = asyncio.Lock()
        self.url = ""

    async def pause(self, seconds: float) -> None:
        self.goes_on.clear()
        await asyncio.sleep(seconds)
        self.goes_on.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        async with self.reading:
            await self.goes_on.wait()
            await asyncio.sleep(len(asked["messages"][0]["content"]) / CHARS_A_SECOND)
        if not asked["stream"]:
            for _ in range(asked["max_tokens"]):
                await self.token()
            return web.json_response({"choices": []})
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        # A request that was moved has left.
        with contextlib.suppress(ConnectionError):
            await reply.prepare(request)
            for _ in range(asked["max_tokens"]):
                await self.token()
                await reply.write(b"data: {}\n\n")
        return reply

    async def token(self) -> None:
        await asyncio.sleep(TOKEN_S)
        async with contextlib.nullcontext() if self.is_chunked else self.reading:
            await self.goes_on.wait()


@contextlib.asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[None]:
    async def well(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", engine.answer)
    app.router.add_get("/health", well)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield
    finally:
        await runner.cleanup()


class Fleet:
    def __init__(self, url: str, engines: list[Engine], http: aiohttp.ClientSession, seed: int) -> None:
        self.url, self.engines, self.http = url, engines, http
        self.random = random.Random(seed)
        self.statuses: Counter[int] = Counter()
        self.asking: set[asyncio.Task[None]] = set()

    async def ask(self, length: int, stream: bool, tokens: int) -> None:
        message = {"role": "user", "content": f"{self.random.random()}".ljust(length, "x")}
        body = {"model": "m", "messages": [message], "stream": stream, "max_tokens": tokens}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            await answer.read()
            self.statuses[answer.status] += 1

    async def traffic(self, a_second: float, streamed: float) -> None:
        """Requests at random moments; a share is ``streamed``."""
        while True:
            await asyncio.sleep(self.random.expovariate(a_second))
            [length] = self.random.choices(LENGTHS, WEIGHTS)
            tokens = self.random.choice((1, 20, 100))
            task = asyncio.create_task(self.ask(length, self.random.random() < streamed, tokens))
            self.asking.add(task)
            task.add_done_callback(self.asking.discard)

    async def pauses(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(0.2))
            engine = self.random.choice(self.engines)
            if engine.goes_on.is_set():
                await engine.pause(self.random.uniform(0.1, 1.5))

    async def hung(self) -> set[str]:
        async with self.http.get(f"{self.url}/workers") as answer:
            workers = (await answer.json())["workers"]
        return {worker["url"] for worker in workers if worker["state"] in ("hung", "half_open")}

    async def wrong_verdicts(self, seconds: float) -> int:
        wrong, known, end = 0, set[str](), time.monotonic() + seconds
        while time.monotonic() < end:
            now = await self.hung()
            wrong += len(now - known)
            known = now
            await asyncio.sleep(0.1)
        return wrong

    async def time_to_verdict(self, engine: Engine) -> float | None:
        """Seconds until an engine that stops is found hung; None if it is not within a minute."""
        engine.goes_on.clear()
        begun = time.monotonic()
        found = None
        while found is None and time.monotonic() < begun + 60:
            await asyncio.sleep(0.05)
            if engine.url in await self.hung():
                found = time.monotonic() - begun
        # One that goes on sooner did not hang: the router would learn that it had been wrong.
        await asyncio.sleep(max(0.0, begun + 10 - time.monotonic()))
        engine.goes_on.set()
        while await self.hung() and time.monotonic() < begun + 90:
            await asyncio.sleep(0.1)
        return found


@contextlib.asynccontextmanager
async def running(*tasks: asyncio.Task[None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(options: argparse.Namespace) -> None:
    engines = [Engine(not options.whole_prompts) for _ in range(WORKERS)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(served(engine))
        urls = [engine.url for engine in engines]
        config = RouterConfig(
            port=0,
            worker_urls=urls,
            policy="least_load",
            hung_timeout=options.hung_timeout,
            expose_worker_urls=True,
        )
        router = RouterServer(json.dumps(vars(config)))
        stack.callback(router.stop)
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        prompts = "whole prompts" if options.whole_prompts else "chunked prompts"
        print(
            f"hung_timeout {options.hung_timeout:g} s, {prompts}, four workers, {options.rate:g} requests/s"
        )
        print(
            f"{'streamed':>9} {'wrong verdicts':>15} {'in s':>6} {'found after s: median':>22} {'longest':>8}"
        )
        for streamed in (1.0, 0.5, 0.0):
            fleet = Fleet(router.url, engines, http, options.seed)
            traffic = asyncio.create_task(fleet.traffic(options.rate, streamed))
            pauses = asyncio.create_task(fleet.pauses())
            found: list[float] = []
            async with running(traffic):
                async with running(pauses):
                    seconds = options.minutes * 60
                    wrong = await fleet.wrong_verdicts(seconds)
                for trial in range(TRIALS):
                    progress(f"streamed {streamed:.0%}: worker {trial + 1} of {TRIALS} hangs")
                    verdict = await fleet.time_to_verdict(fleet.random.choice(engines))
                    found.append(60.0 if verdict is None else verdict)
                    await asyncio.sleep(2)
            for task in list(fleet.asking):
                task.cancel()
            found.sort()
            print(
                f"{streamed:9.0%} {wrong:15d} {seconds:6.0f} {found[len(found) // 2]:22.1f} {found[-1]:8.1f}"
                f"   statuses {dict(fleet.statuses)}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hung-timeout", type=float, default=RouterConfig().hung_timeout)
    parser.add_argument("--minutes", type=float, default=1.5, help="time without a worker that hangs, each")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--whole-prompts", action="store_true", help="a worker that reads sends nothing")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
