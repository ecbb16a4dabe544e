"""`/metrics`: a real parser reads it, and what it says is what happened."""

from __future__ import annotations

import asyncio
import functools
import math
from urllib.parse import urlsplit

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from router_harness import (
    Seen,
    asking,
    bearer,
    comes_to,
    connect,
    get,
    launched,
    post,
    read_head,
    replicas,
    response,
    router,
    status_of,
    until,
)
from waiting import PATIENCE

PREFIX = "sglang_omni_router_"


async def families(url: str) -> dict[str, Metric]:
    answer = await get(url, "/metrics")
    assert answer.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    found = list(text_string_to_metric_families(answer.body.decode()))
    assert len({family.name for family in found}) == len(found)
    return {family.name.removeprefix(PREFIX): family for family in found}


async def value(url: str, name: str, **labels: str) -> float:
    """One sample's value, 0 where there is none."""
    samples = [
        sample
        for family in (await families(url)).values()
        for sample in family.samples
        if sample.name == PREFIX + name and sample.labels == labels
    ]
    assert len(samples) <= 1
    return samples[0].value if samples else 0.0


async def becomes(url: str, wanted: float, name: str, **labels: str) -> None:
    await comes_to(wanted, functools.partial(value, **labels), url, name)


async def test_a_parser_takes_every_family() -> None:
    async with replicas(None) as [replica], router(replica, policy="cache_aware") as url:
        await post(url, b'{"prompt": "p"}')
        found = await families(url)
    for family in found.values():
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            assert sample.name.startswith(PREFIX)
            assert not math.isnan(sample.value)
            if family.type == "counter":
                assert sample.name.endswith("_total")


async def test_requests_by_route_and_status() -> None:
    async def by_path(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(status="418 Teapot" if "odd" in seen.line else "200 OK"))

    async with replicas(by_path) as [replica], router(replica, max_body_bytes=10) as url:
        await post(url)
        await post(url)
        await post(url, b"x" * 11)
        await post(url, path="/odd?v1/completions")
        await post(url, path="/v1/completions?x=/odd")
        for count, route, status in (
            (2.0, "/v1/chat/completions", "200"),
            (1.0, "/v1/chat/completions", "413"),
            (1.0, "/v1/completions", "4xx"),
            (1.0, "other", "4xx"),
        ):
            await becomes(url, count, "requests_total", route=route, status=status)
        durations = await value(url, "request_duration_seconds_count", route="/v1/chat/completions")
        assert durations == 3.0
        # What the router refused has no first byte of a worker.
        assert await value(url, "time_to_first_byte_seconds_count", route="/v1/chat/completions") == 2.0


async def test_a_histogram_says_how_long_it_took() -> None:
    async def slow(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.06)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        await asyncio.sleep(0.25)
        writer.write(b"1\r\nb\r\n0\r\n\r\n")

    async with replicas(slow) as [replica], router(replica) as url:
        assert (await post(url)).body == b"ab"
        labels = {"route": "/v1/chat/completions"}
        await becomes(url, 1.0, "request_duration_seconds_count", **labels)
        found = await families(url)
        for name, label, at_least in (
            ("time_to_first_byte_seconds", labels, 0.06),
            ("worker_time_to_first_byte_seconds", {"worker": replica.url}, 0.06),
            ("request_duration_seconds", labels, 0.31),
        ):
            samples = [sample for sample in found[name].samples if sample.labels.items() >= label.items()]
            by_name = {sample.name: sample.value for sample in samples if "le" not in sample.labels}
            total = by_name[f"{PREFIX}{name}_sum"]
            assert total >= at_least
            buckets = [(float(s.labels["le"]), s.value) for s in samples if "le" in s.labels]
            assert buckets == sorted(buckets)
            assert buckets[-1] == (math.inf, 1.0) == (math.inf, by_name[f"{PREFIX}{name}_count"])
            assert {count for bound, count in buckets if bound < total} == {0.0}
            assert {count for bound, count in buckets if bound > total} == {1.0}
        first = await value(url, "time_to_first_byte_seconds_sum", **labels)
        assert await value(url, "request_duration_seconds_sum", **labels) >= first + 0.2


async def test_how_exchanges_ended() -> None:
    release = asyncio.Event()

    async def by_path(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if "cut" in seen.line:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome")
            await writer.drain()
            await release.wait()
            writer.transport.abort()
        elif "slow" in seen.line:
            await asyncio.sleep(PATIENCE)
        elif "half" in seen.line:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome")
            await writer.drain()
            await asyncio.sleep(PATIENCE)
        else:
            writer.write(response(b"whole"))

    async with replicas(by_path) as [replica], router(replica) as url:
        await post(url)
        await post(url, path="/empty")
        reader, writer = await asking(url, b"HEAD /whole HTTP/1.1\r\nHost: a\r\n\r\n")
        await read_head(reader)
        writer.close()
        for path, how in (("/slow", "client_left"), ("/half", "client_left"), ("/cut", "worker_cut")):
            before = await value(url, "requests_ended_total", how=how)
            reader, writer = await asking(url, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            if path != "/slow":
                await reader.readuntil(b"some")
            else:
                await becomes(url, 1.0, "requests_in_flight")
            release.set() if path == "/cut" else writer.close()
            await becomes(url, before + 1, "requests_ended_total", how=how)
            writer.close()
        # The client that did not wait for an answer's head was given none.
        assert await value(url, "requests_total", route="other", status="499") == 1.0
        # POST, POST, HEAD, and those for /metrics.
        assert await value(url, "requests_ended_total", how="complete") >= 3.0
        assert await value(url, "requests_ended_total", how="worker_cut") == 1.0
        assert await value(url, "requests_in_flight") == 0.0


async def test_bytes_and_connections() -> None:
    async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(seen.body * 2))

    async with replicas(echo) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)
        await reader.readuntil(b"x" * 2000)
        sent_before = await value(url, "sent_bytes_total")
        assert sent_before >= 2000.0
        assert await value(url, "received_bytes_total") == 1000.0
        await becomes(url, 2.0, "connections_open")  # This one, and the one that asks.
        writer.close()
        await becomes(url, 1.0, "connections_open")
        assert await value(url, "connections_total") >= 4.0


async def test_lanes_are_added_up() -> None:
    async with replicas(None) as [replica], router(replica, threads=4) as url:
        await asyncio.gather(*(post(url) for _ in range(40)))
        await becomes(url, 40.0, "requests_total", route="/v1/chat/completions", status="200")
        assert await value(url, "request_duration_seconds_count", route="/v1/chat/completions") == 40.0
        assert await value(url, "worker_time_to_first_byte_seconds_count", worker=replica.url) == 40.0


async def test_a_port_of_their_own() -> None:
    async with launched("--prometheus-port=0", "--api-key", "k") as (process, url):
        assert process.stderr is not None
        while b"metrics are at" not in (line := await asyncio.wait_for(process.stderr.readline(), PATIENCE)):
            assert line, "the router ended"
        other = line.decode().split()[-1].removesuffix("/metrics")
        assert other != url
        assert (await families(other)).keys() == (await families(url)).keys()
        for path in ("/workers", "/health", "/v1/models"):
            assert (await get(other, path)).status == 404
        stalled = [await connect(other) for _ in range(20)]
        assert await value(other, "workers") == 0.0
        for _, writer in stalled:
            writer.close()


async def test_what_workers_count_is_for_administrators() -> None:
    async def shows(url: str, headers: str = "") -> bool:
        page = (await get(url, "/metrics", headers)).body.decode()
        assert "sglang_omni_router_workers 1" in page
        return "their_count{" in page

    forwarded = "X-Forwarded-For: 10.0.0.1\r\n"
    async with replicas(None) as [replica]:
        replica.metrics = b"their_count 3\n"
        async with router(replica) as url:
            await comes_to(200, status_of, url, "/health")
            assert await shows(url)
            assert not await shows(url, forwarded)
        async with router(replica, api_key=["mine"], admin_api_key="admin") as url:
            await comes_to(200, status_of, url, "/health")
            assert [await shows(url, each) for each in ("", bearer("mine"), bearer("admin"))] == [
                False,
                False,
                True,
            ]


async def test_workers_are_asked_once_for_all_who_scrape_meanwhile() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        await comes_to(200, status_of, url, "/health")
        replica.scraped.clear()
        pages = [asyncio.ensure_future(get(url, "/metrics")) for _ in range(20)]
        await until(lambda: replica.scrapes == 1, "it is asked")
        # Nothing else waits for a worker that is slow to give its page.
        assert (await get(url, "/metrics", "X-Forwarded-For: 10.0.0.1\r\n")).status == 200
        assert (await post(url)).status == 200
        replica.scraped.set()
        assert {(await page).status for page in pages} == {200}
        assert replica.scrapes <= 2


async def test_a_port_that_is_taken() -> None:
    async with router() as url:
        with pytest.raises(OSError, match=f"port {urlsplit(url).port} of 127.0.0.1 is in use"):
            async with router(prometheus_port=urlsplit(url).port):
                pass
