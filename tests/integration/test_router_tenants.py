"""Tenants of one router: their turns, classes, rates and limits, as --tenants-file says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from router_harness import (
    Answer,
    HoldingReplica,
    asking,
    assert_error,
    comes_to,
    get,
    metric,
    post,
)
from waiting import PATIENCE

from sglang_omni import _core
from sglang_omni.router.config import RouterConfig


class Shop:
    """A router of tenants, and the worker behind it."""

    def __init__(self, replica: HoldingReplica, server: _core.RouterServer, file: Path) -> None:
        self.replica = replica
        self.server = server
        self.url = server.url
        self.file = file
        self.asked: list[asyncio.Task[Answer]] = []

    async def send(self, tenant: str, body: bytes, headers: str = "") -> Answer:
        return await post(self.url, body, headers=f"X-Tenant-Id: {tenant}\r\n{headers}")

    async def wait(self, tenant: str, body: bytes, headers: str = "") -> asyncio.Task[Answer]:
        """Sends a request that has to wait, until it does."""
        before = await metric(self.url, "requests_waiting")
        task = asyncio.ensure_future(self.send(tenant, body, headers))
        await comes_to(before + 1, metric, self.url, "requests_waiting")
        self.asked.append(task)
        return task

    async def fill(self) -> None:
        """Sends a request that takes the only place."""
        self.asked.append(asyncio.ensure_future(self.send("first", b"first")))
        await self.replica.has(1)

    async def order(self) -> list[bytes]:
        """Lets all go, and returns the bodies in the order in which they had their turn, but the first."""
        for _ in self.asked:
            self.replica.go.release()
        await asyncio.wait_for(asyncio.gather(*self.asked), PATIENCE)
        return [seen.body for seen in self.replica.seen][1:]


@contextlib.asynccontextmanager
async def shop(folder: Path, rules: dict[str, Any], **options: Any) -> AsyncIterator[Shop]:
    file = folder / "tenants.json"
    file.write_text(json.dumps({"tenant_header": "x-tenant-id"} | rules))
    replica = HoldingReplica()
    await replica.start()
    config = RouterConfig(
        worker_urls=[replica.url],
        port=0,
        policy="round_robin",
        threads=2,
        probe_interval=0.1,
        tenants_file=str(file),
        **({"max_concurrent_requests": 1} | options),
    )
    server = _core.RouterServer(json.dumps(vars(config)))
    try:
        yield Shop(replica, server, file)
    finally:
        server.stop()
        assert await asyncio.to_thread(server.wait, PATIENCE)
        await replica.stop()


async def test_a_tenant_that_sends_much_does_not_go_before_another(tmp_path: Path) -> None:
    async with shop(tmp_path, {}) as them:
        await them.fill()
        for number in range(6):
            await them.wait("much", b"much %d" % number)
        await them.wait("little", b"little 0")
        await them.wait("little", b"little 1")
        order = await them.order()
    assert order.index(b"little 0") <= 1
    assert order.index(b"little 1") <= 3
    assert [body for body in order if body.startswith(b"much")] == [b"much %d" % n for n in range(6)]


async def test_weights_and_the_tokens_that_requests_ask_for(tmp_path: Path) -> None:
    rules = {"tenants": {"three": {"weight": 3}}}
    async with shop(tmp_path, rules) as them:
        await them.fill()
        for number in range(6):
            await them.wait("three", b'{"max_tokens": 1000, "n": "a%d"}' % number)
            await them.wait("one", b'{"max_tokens": 1000, "n": "b%d"}' % number)
        order = await them.order()
    assert sum(b"a" in body[-4:] for body in order[:8]) == 6
    async with shop(tmp_path, rules | {"tenants": {}}) as them:
        await them.fill()
        for number in range(4):
            await them.wait("long", b'{"max_tokens": 4000, "n": "a%d"}' % number)
            await them.wait("short", b'{"max_tokens": 500, "n": "b%d"}' % number)
        order = await them.order()
    assert [b"b" in body[-4:] for body in order[:5]].count(True) == 4


async def test_classes_as_far_as_a_tenant_may(tmp_path: Path) -> None:
    rules = {"tenants": {"may": {"max_priority": "high"}}}
    async with shop(tmp_path, rules) as them:
        await them.fill()
        await them.wait("other", b"low", "X-Priority: low\r\n")
        await them.wait("other", b"normal")
        await them.wait("third", b"not high", "X-Priority: high\r\n")
        await them.wait("may", b"high", "X-Priority: high\r\n")
        assert_error(
            await them.send("may", b"", "X-Priority: 7\r\n"),
            400,
            "high, normal or low",
            code="invalid_parameter",
        )
        order = await them.order()
    assert order == [b"high", b"normal", b"not high", b"low"]


async def test_a_full_queue_loses_the_newest_of_the_greediest(tmp_path: Path) -> None:
    async with shop(tmp_path, {}, queue_size=2) as them:
        await them.fill()
        await them.wait("much", b"much 0")
        last = await them.wait("much", b"much 1")
        assert_error(
            await them.send("much", b"much 2"), 429, "2 more are waiting", code="rate_limit_exceeded"
        )
        little = asyncio.ensure_future(them.send("little", b"little"))
        assert_error(await asyncio.wait_for(last, PATIENCE), 429, "2 more", code="rate_limit_exceeded")
        them.asked.append(little)
        assert sorted(await them.order()) == [b"little", b"much 0"]
        text = (await get(them.url, "/metrics")).body.decode()
        assert 'tenant_requests_refused_total{tenant="other"} 2' in text


async def test_rates_refuse_with_openais_headers_and_a_true_time(tmp_path: Path) -> None:
    rules = {"tenants": {"slow": {"requests_per_second": 0.01, "requests_burst": 2}}}
    async with shop(tmp_path, rules, max_concurrent_requests=None) as them:
        for _ in range(5):
            them.replica.go.release()
        assert [(await them.send("slow", b"")).status for _ in range(2)] == [200, 200]
        refused = await them.send("slow", b"")
        assert_error(refused, 429, "0.01 requests a second", code="rate_limit_exceeded")
        assert 90 <= int(refused.header("retry-after") or 0) <= 100
        assert refused.header("x-ratelimit-limit-requests") == "2"
        assert refused.header("x-ratelimit-remaining-requests") == "0"
        assert (refused.header("x-ratelimit-reset-requests") or "").endswith("s")
        assert refused.header("x-ratelimit-limit-tokens") is None
        assert (await them.send("fast", b"")).status == 200
    by_tokens = {"default": {"tokens_per_second": 1, "tokens_burst": 1000}}
    async with shop(tmp_path, by_tokens) as them:
        them.replica.go.release()
        assert (await them.send("a", b'{"max_tokens": 900}')).status == 200
        refused = await them.send("a", b'{"max_tokens": 900}')
        assert_error(refused, 429, "1 tokens a second", code="rate_limit_exceeded")
        assert refused.header("x-ratelimit-limit-tokens") == "1000"


async def test_a_tenants_own_limit_keeps_no_other_waiting(tmp_path: Path) -> None:
    rules = {"tenants": {"one": {"max_concurrent": 1}}}
    async with shop(tmp_path, rules, max_concurrent_requests=None) as them:
        them.asked.append(asyncio.ensure_future(them.send("one", b"0")))
        await them.replica.has(1)
        await them.wait("one", b"1")
        them.asked.append(asyncio.ensure_future(them.send("two", b"2")))
        await them.replica.has(2)
        assert await them.order() == [b"2", b"1"]


async def test_a_time_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    async with shop(tmp_path, {}) as them:
        await them.fill()
        refused = await them.send("a", b"", "X-Request-Timeout-Ms: 100\r\n")
        assert_error(refused, 429, "none ended within 0.1 s", code="rate_limit_exceeded")
        wrong = await them.send("a", b"", "X-Request-Timeout-Ms: soon\r\n")
        assert_error(wrong, 400, "milliseconds", code="invalid_parameter")
        # Turns that take 0.3 s teach the router what it can keep.
        for number in range(4):
            await them.wait("a", b"%d" % number)
        for _ in range(3):
            await asyncio.sleep(0.3)
            them.replica.go.release()
        await comes_to(1, metric, them.url, "requests_waiting")
        began = asyncio.get_running_loop().time()
        refused = await them.send("a", b"", "X-Request-Timeout-Ms: 30\r\n")
        assert_error(refused, 429, "1 requests have their turn before this one", code="rate_limit_exceeded")
        assert asyncio.get_running_loop().time() - began < PATIENCE
        await them.order()


async def test_a_client_that_leaves_gives_its_place_in_the_queue_back(tmp_path: Path) -> None:
    async with shop(tmp_path, {}, queue_size=1) as them:
        await them.fill()
        head = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX-Tenant-Id: b\r\nContent-Length: 2\r\n\r\n{}"
        _, writer = await asking(them.url, head)
        await comes_to(1, metric, them.url, "requests_waiting")
        writer.close()
        await comes_to(0, metric, them.url, "requests_waiting")
        await them.wait("c", b"c")
        assert await them.order() == [b"c"]


async def test_a_reload_changes_rules_and_a_bad_file_does_not(tmp_path: Path) -> None:
    async with shop(tmp_path, {"default": {"max_concurrent": 1}}, max_concurrent_requests=None) as them:
        await them.fill()
        await them.wait("first", b"second")
        them.file.write_text('{"default": {"weight": -1}}')
        them.server.reload()
        await asyncio.sleep(0.2)
        assert await metric(them.url, "requests_waiting") == 1
        them.file.write_text(json.dumps({"tenant_header": "x-tenant-id", "default": {"max_concurrent": 2}}))
        them.server.reload()
        # The one that waits has its turn, and nothing else is needed.
        await them.replica.has(2)
        assert await them.order() == [b"second"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"tenants": {"a": {"weight": 0}}}', "tenants.a.weight: must be more than 0"),
        ('{"defaults": {}}', "unknown field `defaults`"),
        (None, "No such file"),
    ],
)
async def test_a_wrong_file_is_an_error_at_the_start(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "tenants.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match="tenants_file") as error:
        _core.RouterServer(json.dumps(vars(RouterConfig(port=0, tenants_file=str(file)))))
    assert words in str(error.value)


async def test_a_keys_tenant_is_not_the_headers(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("blue key-1\nred key-2\n")
    rules = {"tenants": {"blue": {}, "red": {"requests_per_second": 0.01}}}
    async with shop(tmp_path, rules, api_key_file=str(keys)) as them:
        for _ in range(3):
            them.replica.go.release()
        for key, statuses in [("key-1", [200, 200]), ("key-2", [200, 429])]:
            bearer = f"Authorization: Bearer {key}\r\n"
            assert [(await them.send("blue", b"", bearer)).status for _ in range(2)] == statuses
        text = (await get(them.url, "/metrics")).body.decode()
        assert 'tenant_requests_admitted_total{tenant="blue"} 2' in text
        assert 'tenant_requests_refused_total{tenant="red"} 1' in text
