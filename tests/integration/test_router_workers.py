"""The router's own endpoints, and how policies and models spread requests over real workers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from router_harness import (
    Answer,
    Holding,
    Replica,
    answering,
    assert_error,
    becomes,
    change,
    comes_to,
    get,
    listed,
    post,
    replicas,
    router,
    send_raw,
    served_by,
    status_of,
)

from sglang_omni._core import RouterServer, router_policies
from sglang_omni.router import RouterConfig


async def test_add_list_and_remove() -> None:
    async with replicas(None, None) as [one, other], router(one) as url:
        added = await change(url, "POST", "/workers", {"url": other.url + "/"})
        assert (added.status, json.loads(added.body)["url"]) == (201, other.url)
        assert (await change(url, "POST", "/workers", {"url": other.url})).status == 200
        assert [worker["url"] for worker in await listed(url)] == [one.url, other.url]
        assert {await served_by(url, {}) for _ in range(4)} == {one.url, other.url}

        assert (await change(url, "DELETE", "/workers", {"url": one.url})).status == 200
        assert {await served_by(url, {}) for _ in range(4)} == {other.url}
        escaped = other.url.replace(":", "%3A").replace("/", "%2F")
        assert (await change(url, "DELETE", f"/workers?url={escaped}")).status == 200
        assert await listed(url) == []


async def test_asking_for_workers_that_are_not_there_makes_none() -> None:
    async with replicas(None, None) as [one, other], router(one) as url:
        first = (await listed(url))[0]["id"]
        for index in range(300):
            assert (await get(url, f"/workers/http%3A%2F%2F10.0.0.1%3A{index + 1}")).status == 404
            assert (await change(url, "POST", "/workers", {"url": one.url})).status == 200
        added = json.loads((await change(url, "POST", "/workers", {"url": other.url})).body)
        # Routers of other tests, in this process, may have had workers too.
        assert added["id"] - first < 100


async def test_a_drained_worker_finishes_its_requests_and_gets_no_more() -> None:
    holds = Holding()
    async with replicas(holds, None) as [one, other], router(one, other) as url:
        running = asyncio.ensure_future(post(url))
        await holds.asked.wait()
        assert (await change(url, "POST", "/workers/drain", {"url": one.url})).status == 200
        assert {await served_by(url, {}) for _ in range(4)} == {other.url}
        state = next(worker for worker in await listed(url) if worker["url"] == one.url)
        assert (state["draining"], state["load"]) == (True, 1)
        holds.finish.set()
        assert (await running).body == b"finished"
        await change(url, "POST", "/workers", {"url": one.url})
        assert one.url in {await served_by(url, {}) for _ in range(4)}


async def test_a_removed_worker_finishes_its_requests() -> None:
    holds = Holding()
    async with replicas(holds) as [only], router(only) as url:
        running = asyncio.ensure_future(post(url))
        await holds.asked.wait()
        await change(url, "DELETE", "/workers", {"url": only.url})
        holds.finish.set()
        assert (await running).body == b"finished"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"url": "127.0.0.1:1"}, "http://host:port"),
        ({"url": "ftp://a:1"}, "https://host:port"),
        ({"url": 3}, "not a string"),
        ({}, "missing"),
        ("text", "missing"),
    ],
)
async def test_wrong_worker_urls_say_what_is_right(body: object, words: str) -> None:
    async with router() as url:
        answer = await change(url, "POST", "/workers", body)
        assert answer.status == 400
        assert words in json.loads(answer.body)["error"]["message"]


async def test_an_unknown_worker_is_404() -> None:
    async with replicas(None) as [one], router(one) as url:
        for method, path in (("DELETE", "/workers"), ("POST", "/workers/drain")):
            answer = await change(url, method, path, {"url": "http://127.0.0.1:9"})
            assert answer.status == 404
            assert one.url in json.loads(answer.body)["error"]["message"]


async def test_health_follows_the_workers() -> None:
    async with replicas(None) as [one], router(one) as url:
        await comes_to(200, status_of, url, "/health")
        assert json.loads((await get(url, "/health")).body)["workers"] == {"healthy": 1, "total": 1}
        assert one.seen == []


async def test_metrics_count_what_happened() -> None:
    async with replicas(None) as [one], router(one, policy="cache_aware") as url:
        for _ in range(3):
            await post(url, b'{"prompt": "0123456789"}')
        text = (await get(url, "/metrics")).body.decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert values[f'sglang_omni_router_worker_requests_total{{worker="{one.url}"}}'] == "3"
        assert values[f'sglang_omni_router_worker_inflight{{worker="{one.url}"}}'] == "0"
        assert values["sglang_omni_router_prompt_bytes_total"] == "30"
        assert values["sglang_omni_router_matched_bytes_total"] == "20"
        assert values['sglang_omni_router_requests_total{route="/v1/chat/completions",status="200"}'] == "3"


async def test_round_robin_takes_turns() -> None:
    async with replicas(None, None, None) as three, router(*three) as url:
        served = [await served_by(url, {}) for _ in range(9)]
        assert Counter(served) == {replica.url: 3 for replica in three}


def conversation(name: str, turns: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": f"You are {name}. " * 10}]
    for turn in range(turns):
        messages += [
            {"role": "user", "content": f"{name} asks {turn}"},
            {"role": "assistant", "content": "yes"},
        ]
    return {"model": "m", "messages": messages}


async def test_cache_aware_keeps_conversations_together_and_apart() -> None:
    async with replicas(None, None) as both, router(*both, policy="cache_aware", threads=2) as url:
        homes = {name: await served_by(url, conversation(name, 1)) for name in ("Ada", "Bob")}
        assert len(set(homes.values())) == 2
        for turns in range(2, 6):
            for name, home in homes.items():
                assert await served_by(url, conversation(name, turns)) == home


async def test_cache_aware_follows_the_same_picture() -> None:
    def ask(picture: str, question: str) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture * 20_000}"}}
        return {"messages": [{"role": "user", "content": [image, {"type": "text", "text": question}]}]}

    async with replicas(None, None) as both, router(*both, policy="cache_aware") as url:
        homes = [await served_by(url, ask(picture, "what?")) for picture in "AB"]
        assert homes[0] != homes[1]
        assert [await served_by(url, ask(picture, "why?")) for picture in "ABAB"] == homes * 2


async def test_consistent_hash_keeps_sessions() -> None:
    async with replicas(None, None, None) as three, router(*three, policy="consistent_hash") as url:
        homes = {}
        for user in range(12):
            by_user = {await served_by(url, {"user": f"u{user}", "prompt": str(turn)}) for turn in range(3)}
            by_header = await served_by(url, {"prompt": "x"}, headers=f"X-Session-Id: u{user}\r\n")
            assert by_user == {by_header}
            homes[user] = by_header
        # Ports, and with them the hashes, are others in each run; among so many sessions none goes without.
        homes |= {user: await served_by(url, {"user": f"u{user}"}) for user in range(12, 100)}
        assert len(set(homes.values())) == 3


@pytest.mark.parametrize("policy", router_policies())
async def test_every_policy_serves(policy: str) -> None:
    async with replicas(None, None) as both, router(*both, policy=policy) as url:
        assert {(await post(url, b'{"prompt": "p"}')).status for _ in range(5)} == {200}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "fastest"}, "policy"),
        ({"cache_threshold": 2.0}, "cache_threshold"),
        ({"eviction_interval": -1.0}, "eviction_interval"),
        ({"worker_urls": ["nowhere"]}, "nowhere"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests: 0 would refuse every request"),
        ({"log_level": "loud"}, "log_level: unknown variant `loud`, expected"),
        ({"log_format": "xml"}, "log_format: unknown variant `xml`, expected"),
        ({"request_id_headers": ["x id"]}, r"request_id_headers: \"x id\" is not a header's name"),
        (
            {"cors_allowed_origins": ["app.example"]},
            r"cors_allowed_origins: \"app\.example\" is not an origin",
        ),
        *(({"allowed_hosts": [wrong]}, "allowed_hosts") for wrong in ("http://a", "a:1", "", "*.a")),
        ({"tls_cert_path": "some.pem"}, "tls_key_path: is missing"),
        ({"tls_key_path": "some.pem"}, "tls_cert_path: is missing"),
        ({"api_key": ["two words"]}, "api_key: a key is empty or has other characters"),
        ({"api_key": [""]}, "api_key: a key is empty"),
        ({"worker_api_key": "caf\u00e9"}, "worker_api_key: a key is empty or has other characters"),
        ({"admin_api_key": "two words"}, "admin_api_key: a key is empty or has other characters"),
        ({"admin_api_key": "a", "admin_api_key_file": "/b"}, "admin_api_key: admin_api_key_file is given"),
        ({"admin_api_key_file": "/nowhere/keys"}, "admin_api_key_file: cannot read /nowhere/keys"),
        ({"api_key_file": "/nowhere/keys"}, "api_key_file: cannot read /nowhere/keys"),
        ({"api_key_file": "/dev/null"}, "api_key_file: /dev/null holds no key"),
    ],
)
def test_wrong_configuration_names_what_is_wrong(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RouterServer(json.dumps(vars(RouterConfig(port=0)) | options))


async def until_known(url: str, *models: list[str] | None) -> None:
    async def known() -> list[list[str] | None]:
        return [worker["models"] for worker in await listed(url)]

    await comes_to(list(models), known)


async def serving(url: str, model: str, times: int = 6) -> set[str | None]:
    return {await served_by(url, {"model": model}) for _ in range(times)}


def set_models(replica: Replica, *models: str) -> None:
    replica.models = list(models)


async def test_a_model_goes_to_those_that_serve_it() -> None:
    async with replicas(None, None, None) as [one, two, unknown]:
        set_models(one, "a", "shared")
        set_models(two, "shared", "b")
        async with router(one, two, unknown) as url:
            await until_known(url, ["a", "shared"], ["b", "shared"], None)
            assert await serving(url, "a") == {one.url}
            assert await serving(url, "b") == {two.url}
            assert await serving(url, "b:adapter") == {two.url}
            assert await serving(url, "shared") == {one.url, two.url}
            # Who tells nothing may have anything, but is not preferred to who says so.
            assert await serving(url, "c") == {unknown.url}
            assert {await served_by(url, {"prompt": "x"}) for _ in range(6)} == {
                one.url,
                two.url,
                unknown.url,
            }
            by_query = await get(url, "/v1/realtime?x=1&model=b")
            assert by_query.header("x-sglang-omni-worker") == two.url


async def test_a_model_is_the_same_however_it_is_spelled() -> None:
    """PHP's encoder writes each slash with a backslash, and URLs of WebSockets have it encoded."""
    async with replicas(None, None) as [one, two]:
        set_models(one, "org/a")
        set_models(two, "org/b é")
        async with router(one, two) as url:
            await until_known(url, ["org/a"], ["org/b é"])
            bodies = ['{"model":"org/b é"}', r'{"model":"org\/b \u00e9"}', r'{"model":"org\u002fb é"}']
            queries = ["model=org/b%20%C3%A9", "x=1&model=org%2fb+%c3%a9"]
            answers = [await post(url, body.encode()) for body in bodies]
            answers += [await get(url, f"/v1/realtime?{query}") for query in queries]
            assert [answer.header("x-sglang-omni-worker") for answer in answers] == [two.url] * 5


async def test_workers_that_are_alike_decide_for_themselves() -> None:
    # SGLang, for one, takes any name for its one model.
    async with replicas(None, None) as [one, two]:
        set_models(one, "a")
        set_models(two, "a")
        async with router(one, two) as url:
            await until_known(url, ["a"], ["a"])
            assert await serving(url, "default") == {one.url, two.url}


async def test_where_no_list_has_a_model_it_is_looked_for_again_and_no_other_worker_is_asked() -> None:
    async with replicas(None, answering("503 Busy")) as [one, two]:
        set_models(one, "a")
        set_models(two, "b")
        async with router(one, two) as url:
            await until_known(url, ["a"], ["b"])
            set_models(one, "a", "just loaded")
            assert await serving(url, "just loaded") == {one.url}
            one.seen.clear()
            answer = await post(url, b'{"model": "c"}')
            assert_error(answer, 404, code="model_not_found")
            assert json.loads(answer.body)["error"]["param"] == "model"
            await one.stop()
            assert (await post(url, b'{"model": "a"}')).status == 503
            assert (await post(url, b'{"model": "b"}')).status == 503
            assert (len(one.seen), len(two.seen)) == (0, 1)


async def test_a_worker_that_never_came_up_takes_no_unknown_model() -> None:
    async with replicas(None, None, None) as [one, two, late]:
        set_models(one, "a")
        set_models(two, "b")
        set_models(late, "c")
        await late.stop()
        async with router(one, two, late) as url:
            await until_known(url, ["a"], ["b"], None)
            await becomes(url, late, "down")
            assert_error(await post(url, b'{"model": "c"}'), 404, code="model_not_found")
            await late.start()
            await until_known(url, ["a"], ["b"], ["c"])
            assert await serving(url, "c") == {late.url}
            await late.stop()
            await becomes(url, late, "down")
            assert_error(await post(url, b'{"model": "c"}'), 503, code="workers_down")


def form(model: bytes, sound: bytes) -> list[bytes]:
    """The parts of a form."""
    head = b"--xx\r\nContent-Disposition: form-data; name="
    named = head + b'"model"\r\n\r\n' + model + b"\r\n"
    return [named, head + b'"file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + sound + b"\r\n"]


async def test_the_model_of_a_form_goes_to_those_that_serve_it() -> None:
    async def ask(url: str, *parts: bytes) -> Answer:
        body = b"".join(parts) + b"--xx--\r\n"
        head = (
            "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\n"
            f"Content-Type: multipart/form-data; boundary=xx\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await send_raw(url, head.encode() + body)

    async with replicas(None, None, None) as [*llms, ears]:
        for llm in llms:
            set_models(llm, "a")
        set_models(ears, "org/whisper")
        async with router(*llms, ears) as url:
            await until_known(url, ["a"], ["a"], ["org/whisper"])
            for sound in (b"RIFF" * 10, b"RIFF" * 500_000):
                named, file = form(b"org/whisper", sound)
                orders = [(named, file)] if len(sound) > 1 << 20 else [(named, file), (file, named)]
                for parts in orders * 4:
                    answer = await ask(url, *parts)
                    assert answer.header("x-sglang-omni-worker") == ears.url
                assert ears.seen[-1].body == b"".join(orders[-1]) + b"--xx--\r\n"
            assert_error(await ask(url, *form(b"other", b"")), 404, code="model_not_found")
            # Without a model, or with one beyond what is held, any worker is asked.
            named, file = form(b"org/whisper", b"RIFF" * 500_000)
            asked = {(await ask(url, *parts)).header("x-sglang-omni-worker") for parts in [(file, named)] * 6}
            assert len(asked) == 3
