"""Endpoints of the router that ask every worker: what they merge, and what one failure does to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from router_harness import (
    Answer,
    Handler,
    Holding,
    Seen,
    answering,
    assert_error,
    becomes,
    change,
    comes_to,
    get,
    listed,
    post,
    replicas,
    response,
    router,
    send_raw,
    served_by,
    status_of,
)


def says(status: str = "200 OK", **by_path: object) -> Handler:
    """Answers each path with its JSON, and any other with 404."""

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        path = seen.line.split(" ")[1].split("?")[0].removeprefix("/").replace("/", "_")
        if path in by_path:
            writer.write(response(json.dumps(by_path[path]).encode(), status))
        else:
            writer.write(response(b"no such path", "404 Not Found"))

    return handler


def body_of(answer: Answer) -> Any:
    return json.loads(answer.body)


async def test_loads_of_every_worker_and_of_one_that_is_a_router() -> None:
    tokens = says(get_load=[{"dp_rank": 0, "num_reqs": 3, "num_tokens": 50}, {"num_tokens": 7}])
    requests = says(get_load={"running": 2, "num_reqs": 2})
    below = says(get_loads={"workers": [{"worker": "x", "load": 4}]})
    none = says()
    async with replicas(tokens, requests, below, none) as four, router(*four) as url:
        loads = body_of(await get(url, "/get_loads"))["workers"]
        assert [(entry["worker"], entry["load"]) for entry in loads] == list(
            zip([replica.url for replica in four], [57, 2, 4, None], strict=True)
        )
        assert [entry["inflight"] for entry in loads] == [0, 0, 0, 0]
        assert (loads[0]["status"], loads[0]["answer"][1]) == (200, {"num_tokens": 7})
        assert loads[3]["status"] == 404


async def test_workers_that_are_gone_or_silent_are_reported_and_hold_nothing_up() -> None:
    async def silent(_seen: Seen, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with (
        replicas(says(get_load={"num_reqs": 1}), silent, None) as three,
        router(*three) as url,
        router(three[1]) as hanging,
    ):
        await three[2].stop()
        loads, models = await asyncio.gather(get(url, "/get_loads"), get(hanging, "/v1/models"))
        known, unheard, gone = body_of(loads)["workers"]
        assert known["load"] == 1
        assert "no answer" in unheard["error"]
        assert "refused" in gone["error"]
        words = f"{three[1].url}: /v1/models: no answer in 5 s"
        assert_error(models, 504, words, code="worker_timeout")


async def test_flush_cache_reaches_every_worker_and_the_policy() -> None:
    flushes = says(flush_cache={}, v1_chat_completions={})
    conversation = json.dumps({"prompt": "the same words " * 20}).encode()
    async with replicas(flushes, flushes) as both, router(*both, policy="cache_aware") as url:
        await post(url, conversation)

        async def tree_bytes() -> int:
            lines = (await get(url, "/metrics")).body.decode().splitlines()
            return sum(int(line.split()[-1]) for line in lines if "router_tree_bytes{" in line)

        assert await tree_bytes() > 0
        answer = await post(url, b"", path="/flush_cache?timeout=3")
        assert answer.status == 200
        assert body_of(answer)["successful"] == [replica.url for replica in both]
        assert await tree_bytes() == 0
        for replica in both:
            assert replica.seen[-1].line == "POST /flush_cache?timeout=3 HTTP/1.1"


async def test_workers_without_a_cache_to_flush_do_not_fail_the_others() -> None:
    async with (
        replicas(says(flush_cache={}), says()) as [flushes, lacks],
        router(flushes, lacks) as url,
        router(lacks) as bare,
        router("http://127.0.0.1:9") as dead,
    ):
        answer = await post(url, b"", path="/flush_cache")
        assert (answer.status, body_of(answer)["status"]) == (206, "partial_success")
        assert body_of(answer)["failed"] == [{"worker": lacks.url, "error": "HTTP 404 Not Found"}]
        answer = await post(bare, b"", path="/flush_cache")
        assert (answer.status, body_of(answer)["status"]) == (404, "not_supported")
        assert (await post(dead, b"", path="/flush_cache")).status == 502


async def test_abort_request_is_sent_to_all_as_it_is() -> None:
    knows, does_not = says(abort_request={"success": True}), says(abort_request={"success": False})
    async with replicas(knows, does_not) as both, router(*both) as url, router(both[1]) as other:
        answer = await post(
            url, b'{"rid":  "a"}', path="/abort_request", headers="Authorization: Bearer k\r\n"
        )
        assert (answer.status, body_of(answer)["success"]) == (200, True)
        assert [entry["answer"] for entry in body_of(answer)["workers"]] == [
            {"success": True},
            {"success": False},
        ]
        for replica in both:
            assert replica.seen[-1].body == b'{"rid":  "a"}'
            assert replica.seen[-1].header("authorization") == "Bearer k"
            assert replica.seen[-1].header("content-type") == "application/json"
        assert body_of(await post(other, b"{}", path="/abort_request"))["success"] is False


async def test_abort_request_that_all_refuse_is_refused() -> None:
    refuses = says("400 Bad Request", abort_request={"error": "which?"})
    async with replicas(refuses, refuses) as both, router(*both) as url, router() as empty:
        answer = await post(url, b"{}", path="/abort_request")
        assert (answer.status, body_of(answer)["success"]) == (400, False)
        assert body_of(answer)["workers"][0]["answer"] == {"error": "which?"}
        assert (await post(empty, b"{}", path="/abort_request")).status == 503


async def test_the_worker_of_a_call_hangs_up() -> None:
    one, other = says(v1_realtime_calls_rtc_1_hangup=None), says()
    async with replicas(one, other) as two, router(*two, api_key=["k"]) as url:
        headers = "Authorization: Bearer k\r\n"
        hung_up = await post(url, b"", path="/v1/realtime/calls/rtc_1/hangup", headers=headers)
        assert (hung_up.status, hung_up.body) == (200, b"")
        owners = [replica.seen[-1].header("x-sglang-omni-owner") for replica in two]
        assert owners[0]
        assert owners[0] == owners[1]
        gone = await post(url, b"", path="/v1/realtime/calls/rtc_2/hangup", headers=headers)
        assert gone.status == 404
        for replica in two:
            replica.seen.clear()
        # The other paths of calls go to one worker.
        await post(url, b"", path="/v1/realtime/calls/rtc_1", headers=headers)
        assert sum(len(replica.seen) for replica in two) == 1


async def test_server_info_of_router_and_workers() -> None:
    async with replicas(says(get_server_info={"version": "x"}), says()) as both, router(*both) as url:
        for path in ("/get_server_info", "/server_info"):
            info = body_of(await get(url, path))
            assert (info["policy"], info["workers_count"]) == ("round_robin", 2)
            assert [entry["status"] for entry in info["workers"]] == [200, 404]
            assert info["workers"][0]["answer"] == {"version": "x"}


async def test_models_are_merged_over_workers() -> None:
    def offers(*names: str) -> Handler:
        models = [{"id": name, "object": "model", "owned_by": "x"} for name in names]
        return says(v1_models={"object": "list", "data": models})

    broken = says("500 No", v1_models={})
    async with replicas(offers("a/b", "b"), offers("b", "c"), broken) as three, router(*three) as url:
        head = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer key\r\n\r\n"
        answer = body_of(await send_raw(url, head))
        assert answer["object"] == "list"
        assert [model["id"] for model in answer["data"]] == ["a/b", "b", "c"]
        assert three[0].seen[0].header("authorization") == "Bearer key"

        assert body_of(await get(url, "/v1/models/a%2Fb"))["id"] == "a/b"
        assert body_of(await get(url, "/v1/models/a/b"))["id"] == "a/b"
        unknown = await get(url, "/v1/models/d")
        error = body_of(unknown)["error"]
        assert (unknown.status, error["code"], error["param"]) == (404, "model_not_found", "model")


async def test_readiness_needs_a_worker_and_liveness_none() -> None:
    async with replicas(None) as [one], router(one) as url:
        await comes_to(200, status_of, url, "/readiness")
        assert body_of(await get(url, "/readiness")) == {
            "status": "ready",
            "healthy_workers": 1,
            "total_workers": 1,
        }
        await change(url, "POST", "/workers/drain", {"url": one.url})
        drained = await get(url, "/readiness")
        assert (drained.status, body_of(drained)["reason"]) == (503, "no worker is healthy")
        assert (await get(url, "/liveness")).status == 200


async def test_names_of_older_routers_do_the_same() -> None:
    async with replicas(None, None) as [one, other], router(one) as url:
        assert (await change(url, "POST", f"/add_worker?url={other.url}")).status == 201
        assert body_of(await get(url, "/list_workers")) == {"urls": [one.url, other.url]}
        assert (await change(url, "POST", f"/remove_worker?url={one.url}")).status == 200
        assert (await get(url, "/remove_worker")).status == 405
        assert {await served_by(url, {}) for _ in range(3)} == {other.url}


async def test_one_worker_by_its_id_or_url() -> None:
    async with replicas(None, None) as [one, other], router(one, other) as url:
        first, second = await listed(url)
        assert body_of(await get(url, f"/workers/{first['id']}"))["url"] == one.url
        escaped = other.url.replace(":", "%3A").replace("/", "%2F")
        for path in (f"/workers/{escaped}", f"/workers/{other.url}"):
            assert body_of(await get(url, path))["id"] == second["id"]
        assert (await get(url, "/workers/4294967295")).status == 404
        assert (await change(url, "DELETE", f"/workers/{first['id']}")).status == 200
        assert (await change(url, "DELETE", f"/workers/{escaped}")).status == 200
        assert await listed(url) == []


async def test_a_drain_can_be_waited_for() -> None:
    holds = Holding()
    async with replicas(holds) as [one], router(one) as url:
        running = asyncio.ensure_future(post(url))
        await holds.asked.wait()
        busy = body_of(await change(url, "POST", f"/workers/drain?url={one.url}&wait=0.1"))
        assert (busy["idle"], busy["load"]) == (False, 1)
        draining = asyncio.ensure_future(change(url, "POST", "/workers/drain", {"url": one.url, "wait": 60}))
        # It waits as long as the request takes.
        assert not (await asyncio.wait({draining}, timeout=0.3))[0]
        holds.finish.set()
        assert (await running).body == b"finished"
        assert body_of(await draining)["idle"] is True
        wrong = await change(url, "POST", "/workers/drain", {"url": one.url, "wait": "soon"})
        assert wrong.status == 400


async def test_a_list_of_models_that_no_worker_has_is_404_like_theirs() -> None:
    missing = answering("404 Not Found")
    async with replicas(missing, missing) as both, router(*both) as url:
        for path in ("/v1/models", "/v1/models/a"):
            answer = await get(url, path)
            error = body_of(answer)["error"]
            assert (answer.status, error["type"]) == (404, "invalid_request_error")
            assert "/v1/models: HTTP 404" in error["message"]
    async with replicas(missing, answering("401 Who")) as both, router(*both) as url:
        assert (await get(url, "/v1/models")).status == 503


async def test_models_of_a_fleet_that_is_down_draining_or_not_there() -> None:
    """Each is told as what it is; the first command of docs/router.md meets one of these on a bad day."""
    async with replicas(says(v1_models={"data": [{"id": "a"}]})) as [replica], router(replica) as url:
        await becomes(url, replica, "up")
        await change(url, "POST", "/workers/drain", {"url": replica.url})
        await assert_unserved(url, "workers_draining", "is draining")
        await change(url, "POST", "/workers", {"url": replica.url})
        await replica.stop()
        await becomes(url, replica, "down")
        await assert_unserved(url, "workers_down", f"{replica.url}: /v1/models: Connection refused")
        # Back, and not probed yet: it is asked all the same.
        await replica.start()
        assert (await get(url, "/v1/models")).status == 200
    async with router() as url:
        await assert_unserved(url, "no_workers", "POST /workers")


async def assert_unserved(url: str, code: str, words: str) -> None:
    for answer in (await get(url, "/v1/models"), await get(url, "/v1/models/a")):
        error = body_of(answer)["error"]
        assert (answer.status, error["code"], error["type"]) == (503, code, "server_error")
        assert words in error["message"]


async def test_an_abort_that_every_worker_refuses_is_their_error() -> None:
    refusal = {"error": {"message": "request_id: which?", "type": "t", "param": "request_id", "code": "c"}}
    refuses = says("400 Bad Request", abort_request=refusal)
    async with replicas(refuses, refuses) as both, router(*both) as url:
        answer = await post(url, b'{"abort_all": true}', "/abort_request")
        fields = body_of(answer)
        assert (answer.status, fields["error"], fields["success"]) == (400, refusal["error"], False)
        assert [entry["status"] for entry in fields["workers"]] == [400, 400]
    async with replicas(None) as [replica], router(replica) as url:
        await replica.stop()
        for path in ("/abort_request", "/flush_cache"):
            answer = await post(url, b"{}", path)
            assert_error(answer, 502, f"{replica.url}: Connection refused", code="worker_failed")
