"""Who may administer the router, and what strangers learn of its fleet."""

from __future__ import annotations

import json
import socket
from typing import Any

import aiohttp
import pytest
from router_harness import (
    Answer,
    Replica,
    Seen,
    bearer,
    get,
    post,
    replicas,
    response,
    router,
    send_raw,
    until,
)

CHANGES = [
    "POST /workers?url=http://127.0.0.1:9",
    "DELETE /workers?url=http://127.0.0.1:9",
    "POST /workers/drain?url=http://127.0.0.1:9",
    "DELETE /workers/0",
    "POST /add_worker?url=http://127.0.0.1:9",
    "POST /remove_worker?url=http://127.0.0.1:9",
    "POST /flush_cache",
    "POST /start_profile",
    "POST /stop_profile",
]
READS = ["GET /workers", "GET /workers/0", "GET /list_workers", "GET /get_server_info", "GET /server_info"]

# The headers of a page's request that a browser sends without asking the router first.
SIMPLE = "Content-Type: text/plain\r\n"
FOREIGN = [
    "Origin: http://evil.example\r\n",
    "Origin: null\r\n",
    "Sec-Fetch-Site: cross-site\r\n",
    "Origin: http://127.0.0.1:1\r\n",
]


async def ask(url: str, line: str, headers: str = "", host: str = "localhost", body: bytes = b"") -> Answer:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{line} HTTP/1.1\r\nHost: {host}\r\n{headers}{length}\r\n"
    return await send_raw(url, head.encode() + body)


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]["code"]


def message_of(answer: Answer) -> str:
    return json.loads(answer.body)["error"]["message"]


async def urls(url: str, headers: str = "") -> list[str]:
    return json.loads((await ask(url, "GET /list_workers", headers)).body)["urls"]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_web_page_changes_nothing(headers: str) -> None:
    async with replicas(None, None) as [one, evil], router(one) as url:
        for line in (f"POST /workers?url={evil.url}", f"DELETE /workers?url={one.url}", *CHANGES):
            answer = await ask(url, line, headers + SIMPLE)
            assert code_of(answer) == (403, "cross_site_request"), line
        assert await urls(url) == [one.url]
        assert one.seen == evil.seen == []


async def test_pages_that_may_read_answers_administer_nothing() -> None:
    origin = "Origin: https://page\r\n"
    async with replicas(None) as [one], router(one, cors_allowed_origins=["https://page", "*"]) as url:
        for line in CHANGES:
            assert code_of(await ask(url, line, origin)) == (403, "cross_site_request"), line
        assert (await post(url, headers=origin)).status == 200


async def test_a_page_of_the_routers_own_address_may_administer() -> None:
    async with router() as url:
        same = "Origin: http://localhost:30000\r\nSec-Fetch-Site: same-origin\r\n"
        answer = await ask(url, "POST /workers?url=http://127.0.0.1:9", same, host="localhost:30000")
        assert answer.status == 201
        site = "Origin: http://other.localhost:30000\r\nSec-Fetch-Site: same-site\r\n"
        answer = await ask(url, "POST /workers?url=http://127.0.0.1:8", site, host="localhost:30000")
        assert code_of(answer) == (403, "cross_site_request")


@pytest.mark.parametrize(
    ("host", "options", "is_known"),
    [
        ("127.0.0.1:30000", {}, True),
        ("[::1]:30000", {}, True),
        ("LocalHost", {}, True),
        ("a.localhost:1", {}, True),
        ("evil.example:30000", {}, False),
        ("127.0.0.1.evil.example", {}, False),
        ("evil-localhost", {}, False),
        ("router.internal:30000", {"allowed_hosts": ["Router.internal"]}, True),
        ("other.internal:30000", {"allowed_hosts": ["router.internal"]}, False),
        ("evil.example", {"allowed_hosts": ["*"]}, True),
    ],
)
async def test_only_under_a_name_of_its_own_it_is_administered(
    host: str, options: dict[str, Any], is_known: bool
) -> None:
    """A page whose name was made to lead to 127.0.0.1 is of the same origin, to a browser."""
    async with router(**options) as url:
        for line in ("POST /workers?url=http://127.0.0.1:9", "GET /workers"):
            answer = await ask(url, line, f"Origin: http://{host}\r\n", host=host)
            if is_known:
                assert answer.status in (200, 201)
            else:
                assert code_of(answer) == (403, "unknown_host")
                assert "--allowed-hosts" in message_of(answer)


async def test_no_state_is_changed_by_a_read() -> None:
    async with replicas(None) as [one], router(one) as url:
        answer = await get(url, "/flush_cache")
        assert code_of(answer) == (405, "method_not_allowed")
        assert answer.header("allow") == "POST"
        assert one.seen == []


async def test_a_change_with_a_body_is_json() -> None:
    async with router() as url:
        body = b'{"url": "http://127.0.0.1:9"}'
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
            header = f"Content-Type: {kind}\r\n" if kind else ""
            answer = await ask(url, "POST /workers", header, body=body)
            assert code_of(answer) == (415, "unsupported_media_type"), kind
        answer = await ask(url, "POST /flush_cache", SIMPLE)
        assert code_of(answer) == (415, "unsupported_media_type")
        assert await urls(url) == []
        header = "Content-Type: Application/JSON; charset=utf-8\r\n"
        assert (await ask(url, "POST /workers", header, body=body)).status == 201


async def test_only_the_admin_key_administers() -> None:
    async with (
        replicas(None) as [one],
        router(one, api_key=["client", "both"], admin_api_key="admin") as url,
    ):
        for line in [*CHANGES, *READS]:
            answer = await ask(url, line)
            assert code_of(answer) == (401, "invalid_api_key"), line
            assert answer.header("www-authenticate") == "Bearer"
            assert code_of(await ask(url, line, bearer("wrong"))) == (401, "invalid_api_key"), line
            answer = await ask(url, line, bearer("client"))
            assert code_of(answer) == (403, "admin_key_needed"), line
        assert one.seen == []
        assert await urls(url, bearer("admin")) == [one.url]
        # It is no client's key.
        assert (await post(url, headers=bearer("admin"))).status == 401
        assert (await post(url, headers=bearer("client"))).status == 200
        assert (await ask(url, f"DELETE /workers?url={one.url}", bearer("admin"))).status == 200
        assert await urls(url, bearer("admin")) == []


async def test_a_key_may_be_a_clients_and_the_admins() -> None:
    async with replicas(None) as [one], router(one, api_key=["both"], admin_api_key="both") as url:
        assert (await post(url, headers=bearer("both"))).status == 200
        assert (await ask(url, "GET /workers", bearer("both"))).status == 200


async def test_without_an_admin_key_only_this_machine_administers() -> None:
    async with replicas(None) as [one], router(one) as url:
        assert (await ask(url, "GET /workers")).status == 200
        for proxied in ("Forwarded: for=1.2.3.4\r\n", "X-Forwarded-For: 1.2.3.4\r\n", "Via: 1.1 a\r\n"):
            for headers in (proxied, proxied + bearer("client")):
                for line in [*CHANGES, *READS]:
                    answer = await ask(url, line, headers)
                    assert code_of(answer) == (403, "admin_key_needed"), line
                    assert "--admin-api-key" in message_of(answer)
        assert await urls(url) == [one.url]


def own_address() -> str | None:
    """An address of this machine that is not a loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


@pytest.mark.skipif(own_address() is None, reason="this machine has loopback addresses only")
async def test_other_machines_need_the_admin_key() -> None:
    async with replicas(None) as [one]:
        for keys in ({}, {"api_key": ["client"]}):
            async with router(one, host="0.0.0.0", **keys) as url:
                outside = url.replace("0.0.0.0", str(own_address()))
                for line in [*CHANGES, *READS]:
                    answer = await ask(outside, line, bearer("client"))
                    assert code_of(answer) == (403, "admin_key_needed"), line
                assert (await post(outside, headers=bearer("client"))).status == 200
        async with router(one, host="0.0.0.0", admin_api_key="admin") as url:
            outside = url.replace("0.0.0.0", str(own_address()))
            assert (await ask(outside, "GET /workers", bearer("admin"))).status == 200


async def test_a_proxys_loopback_address_is_not_this_machine() -> None:
    """A sidecar takes what comes from elsewhere, and asks from 127.0.0.6."""
    async with replicas(None) as [one], router(one) as url:
        for source, expected in (("127.0.0.6", 403), ("127.0.0.1", 200)):
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(source, 0))) as client,
                client.get(f"{url}/workers") as answer,
            ):
                assert answer.status == expected, source


async def test_the_admin_key_is_not_shown_to_workers() -> None:
    async with replicas(None) as [one], router(one, admin_api_key="admin") as url:
        await ask(url, "POST /flush_cache", bearer("admin"))
        await ask(url, "GET /get_server_info", bearer("admin"))
        await post(url, headers=bearer("admin"))
        assert len(one.seen) == 3
        assert {seen.header("authorization") for seen in one.seen} == {None}


async def asked_for_everything(url: str, replica: Replica, headers: str = "") -> list[Seen]:
    """What a worker is asked: by clients, by the admin, by the router itself."""
    replica.seen.clear()
    await post(url, headers=headers)
    await ask(url, "GET /v1/models", headers)
    await ask(url, "POST /flush_cache", headers)
    upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n"
    await ask(url, "GET /v1/realtime", headers + upgrade)
    replica.last_probe = None

    await until(lambda: replica.last_probe is not None, "a health check")
    assert replica.last_probe is not None
    return [*replica.seen, replica.last_probe]


async def test_a_worker_that_was_added_does_not_see_the_fleets_key() -> None:
    async with (
        replicas(None, None, None) as [one, stranger, keyed],
        router(one, worker_api_key="fleet") as url,
    ):
        for seen in await asked_for_everything(url, one, bearer("client")):
            assert seen.header("authorization") == "Bearer fleet", seen.line
        await ask(url, f"DELETE /workers?url={one.url}")

        answer = await ask(url, f"POST /workers?url={stranger.url}")
        assert answer.status == 201
        for seen in await asked_for_everything(url, stranger, bearer("client")):
            assert seen.header("authorization") is None, seen.line
        await ask(url, f"DELETE /workers?url={stranger.url}")

        body = json.dumps({"url": keyed.url, "api_key": "its-own"}).encode()
        json_body = "Content-Type: application/json\r\n"
        answer = await ask(url, "POST /workers", json_body, body=body)
        assert answer.status == 201
        assert b"its-own" not in answer.body + (await get(url, "/workers")).body
        for seen in await asked_for_everything(url, keyed, bearer("client")):
            assert seen.header("authorization") == "Bearer its-own", seen.line
        answer = await ask(url, "POST /workers", json_body, body=body)
        assert code_of(answer) == (400, "invalid_parameter")
        for wrong in ("two words", "", 3):
            body = json.dumps({"url": one.url, "api_key": wrong}).encode()
            answer = await ask(url, "POST /workers", json_body, body=body)
            assert code_of(answer) == (400, "invalid_parameter")
            assert "two words" not in message_of(answer)


async def test_strangers_do_not_learn_the_fleets_addresses() -> None:
    async def broken(_seen: Seen, writer: Any) -> None:
        writer.transport.abort()

    hidden = {"expose_worker_urls": False, "disable_retries": True, "admin_api_key": "admin"}
    async with replicas(None, broken) as [one, other]:
        ports = [str(one.port).encode(), str(other.port).encode(), b"127.0.0.1"]

        def tells(answer: Answer) -> bool:
            reported = answer.body + repr(answer.headers).encode()
            return any(port in reported for port in ports)

        async with router(one, other, "http://127.0.0.1:9", **hidden) as url:
            answers = [await post(url, b'{"a": 1}') for _ in range(6)]
            assert {answer.status for answer in answers} == {200, 502}
            answers += [
                await post(url, b'{"request_id": "a"}', path="/abort_request"),
                await get(url, "/metrics"),
                await get(url, "/health"),
                await get(url, "/get_loads"),
                await get(url, "/v1/models"),
            ]
            for answer in answers:
                assert not tells(answer), answer
            served = [answer.header("x-sglang-omni-worker") for answer in answers if answer.status == 200]
            assert any(name is not None and name.isdigit() for name in served)

            assert tells(await ask(url, "GET /metrics", bearer("admin")))
            assert tells(await ask(url, "GET /get_loads", bearer("admin")))
        async with router("http://127.0.0.1:9", **hidden) as url:
            answer = await post(url)
            assert (answer.status, tells(answer)) == (503, False)
            assert "worker" in message_of(answer)


async def test_a_page_generates_nothing_where_no_key_is_needed() -> None:
    async with replicas(None) as [one]:
        async with router(one) as url:
            for headers in FOREIGN:
                answer = await ask(url, "POST /v1/chat/completions", headers + SIMPLE, body=b"{}")
                assert code_of(answer) == (403, "cross_site_request")
                assert "--cors-allowed-origins" in message_of(answer)
                answer = await ask(url, "POST /abort_request", headers, body=b"{}")
                assert code_of(answer) == (403, "cross_site_request")
                upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n"
                answer = await ask(url, "GET /v1/realtime", headers + upgrade)
                assert code_of(answer) == (403, "cross_site_request")
            assert one.seen == []
            same = "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n"
            for headers in ("", same, "Sec-Fetch-Site: none\r\n"):
                assert (await post(url, headers=headers)).status == 200
        async with router(one, cors_allowed_origins=["http://evil.example"]) as url:
            headers = "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n"
            assert (await post(url, headers=headers)).status == 200
        async with router(one, api_key=["k"]) as url:
            assert (await post(url, headers=FOREIGN[0] + bearer("k"))).status == 200


async def test_where_clients_need_a_key_administrators_do_too() -> None:
    """Something on this machine may pass on what comes from elsewhere."""
    async with replicas(None) as [one], router(one, api_key=["mine"]) as url:
        for line in [*CHANGES, *READS]:
            for headers in ("", bearer("other")):
                answer = await ask(url, line, headers)
                assert code_of(answer) == (401, "invalid_api_key")
                assert "--admin-api-key" in message_of(answer)
        # A client's key is enough from here, as it is for a server.
        assert (await ask(url, "GET /workers", bearer("mine"))).status == 200
        forwarded = bearer("mine") + "X-Forwarded-For: 10.0.0.1\r\n"
        assert code_of(await ask(url, "GET /workers", forwarded)) == (403, "admin_key_needed")


async def test_workers_are_reported_whose_a_request_is() -> None:
    name = "x-sglang-omni-owner"
    forged = f"{name}: forged\r\n"

    async def owners(url: str, replica: Replica, key: str) -> set[str | None]:
        replica.seen.clear()
        await post(url, headers=bearer(key) + forged)
        await post(url, b"{}", "/abort_request", bearer(key) + forged)
        upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n"
        await ask(url, "GET /v1/realtime", bearer(key) + forged + upgrade)
        assert len(replica.seen) == 3
        return {seen.header(name) for seen in replica.seen}

    async def bad(_seen: Seen, writer: Any) -> None:
        writer.write(response(b"no", "400 No"))

    async with replicas(bad) as [one]:
        async with router(one) as url:
            assert await owners(url, one, "any") == {None}
        found = []
        for _ in range(2):
            async with router(one, api_key=["a", "b"]) as url:
                [first] = await owners(url, one, "a")
                [second] = await owners(url, one, "b")
                found.append((first, second))
        # They outlive the router, and tell nothing of the key.
        assert found[0] == found[1]
        assert first is not None
        assert second is not None
        assert len({first, second, "forged"}) == 3
        assert len(first) == 32
        assert int(first, 16) > 0
