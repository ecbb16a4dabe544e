"""What a tenant that floods the router does to another one's answers, beside a plain queue.

    python benches/router_tenants.py [--seconds 30] [--places 32]

One mock worker takes 0.4 to 1.2 s for an answer and the router lets ``--places`` requests run. Two tenants
have half of what these serve as their shares. The quiet one sends half of its share, the other none, its
share, or 20 times as much. The plain queue is the same router without ``--tenants-file``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
from aiohttp import web

from sglang_omni import _core
from sglang_omni.router.config import RouterConfig

QUEUE = 100
# Seconds of an answer.
SHORTEST, LONGEST = 0.4, 1.2
RULES = {"tenant_header": "x-tenant-id", "tenants": {"quiet": {}, "flood": {}}}


async def worker(port: list[int], ended: asyncio.Event) -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(random.uniform(SHORTEST, LONGEST))
        return web.json_response({"choices": []})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/health", lambda _: asyncio.sleep(0, web.Response()))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port.append(runner.addresses[0][1])
    await ended.wait()
    await runner.cleanup()


async def send(session: aiohttp.ClientSession, tenant: str, took: list[float], seen: Counter[int]) -> None:
    began = time.perf_counter()
    body = {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 100}
    async with session.post("/v1/chat/completions", json=body, headers={"x-tenant-id": tenant}) as answer:
        await answer.read()
    seen[answer.status] += 1
    if answer.status == 200:
        took.append(time.perf_counter() - began)


async def arrive(
    session: aiohttp.ClientSession, tenant: str, rate: float, end: float
) -> tuple[list[float], Counter[int]]:
    """Sends requests at random times, with this many a second; the seconds of answers, and the statuses."""
    took: list[float] = []
    seen: Counter[int] = Counter()
    async with asyncio.TaskGroup() as requests:
        at = time.perf_counter()
        while rate and (at := at + random.expovariate(rate)) < end:
            await asyncio.sleep(at - time.perf_counter())
            requests.create_task(send(session, tenant, took, seen))
    return took, seen


async def measure(places: int, quiet: float, flood: float, is_fair: bool, seconds: float) -> str:
    random.seed(1)
    port: list[int] = []
    ended = asyncio.Event()
    serving = asyncio.create_task(worker(port, ended))
    while not port:
        await asyncio.sleep(0.01)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tenants.json")
        file.write_text(json.dumps(RULES))
        config = RouterConfig(
            worker_urls=[f"http://127.0.0.1:{port[0]}"],
            port=0,
            threads=1,
            policy="round_robin",
            log_level="error",
            max_concurrent_requests=places,
            queue_size=QUEUE,
            tenants_file=str(file) if is_fair else None,
        )
        server = _core.RouterServer(json.dumps(vars(config)))
    await asyncio.sleep(1.5)
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        end = time.perf_counter() + seconds
        (took, seen), _ = await asyncio.gather(
            arrive(session, "quiet", quiet, end), arrive(session, "flood", flood, end)
        )
    server.stop()
    await asyncio.to_thread(server.wait, 30)
    ended.set()
    await serving
    took.sort()
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    return f"{p50:.3f} s | {p99:.3f} s | {seen[200]} | {seen[429]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each row (30)")
    parser.add_argument("--places", type=int, default=32, help="--max-concurrent-requests (32)")
    arguments = parser.parse_args()
    share = arguments.places / (SHORTEST + LONGEST)
    print(
        "| the other sends | queue | p50 | p99 | answered | refused |\n| --- | --- | --- | --- | --- | --- |"
    )
    for times, is_fair in [(0, True), (1, True), (20, True), (20, False)]:
        row = measure(arguments.places, share / 2, times * share, is_fair, arguments.seconds)
        print(
            f"| {times} times its share | {'fair' if is_fair else 'plain'} | {asyncio.run(row)} |", flush=True
        )


if __name__ == "__main__":
    main()
