"""A request's id is its owner's: others neither see, abort nor delay what goes by it, nor take its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from owned_server import Served, served

from sglang_omni.client import Client, GenerateRequest, SyncClient
from sglang_omni.serve.front.access import Access

KEYS = ("client-a", "client-b")
A, B = ({"authorization": f"Bearer {key}"} for key in KEYS)
ANN, BOB = ({"x-sglang-omni-owner": word} for word in ("ann", "bob"))


@pytest.fixture
async def keyed() -> AsyncIterator[Served]:
    async with served(access=Access(api_keys=KEYS)) as server:
        yield server


@pytest.fixture
async def keyless() -> AsyncIterator[Served]:
    async with served() as server:
        yield server


@pytest.fixture(params=["keys", "header"])
async def two(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Served, Any, Any]]:
    """A server with two owners: by their own keys, or by what a router says."""
    by_key = request.param == "keys"
    async with served(access=Access(api_keys=KEYS) if by_key else None) as server:
        yield (server, *((A, B) if by_key else (ANN, BOB)))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_duplicate_leaves_the_first_to_its_end(keyless: Served, stream: bool) -> None:
    first = keyless.asking("hold the first", request_id="victim-1")
    await keyless.holds(1)
    for _ in range(3):
        again = await keyless.ask("hold the second", request_id="victim-1", stream=stream)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "duplicate_request_id")
    keyless.stage.release_all()
    choice = (await first).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hold the first", "stop")
    assert (await keyless.ask("again", request_id="victim-1")).json()["choices"][0]["text"] == "again"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_duplicate_of_the_pythonic_way_does_so_too(keyless: Served, stream: bool) -> None:
    client = Client(keyless.coordinator)
    first = asyncio.create_task(
        client.completion(GenerateRequest(prompt="hold the first", stream=stream), request_id="twice")
    )
    await keyless.holds(1)
    for again in (False, True):
        with pytest.raises(ValueError, match="already exists"):
            await client.completion(GenerateRequest(prompt="x", stream=again), request_id="twice")
    keyless.stage.release_all()
    assert (await first).text == "hold the first"


async def test_who_leaves_ends_the_own_request_alone(keyless: Served) -> None:
    client = Client(keyless.coordinator)
    ways = []
    for stream in (False, True):
        request = GenerateRequest(prompt="hold", stream=stream)
        ways.append(asyncio.create_task(client.completion(request, request_id=f"mine-{stream}")))
    other = asyncio.create_task(client.completion(GenerateRequest(prompt="hold other")))
    await keyless.holds(3)
    for way in ways:
        way.cancel()
    await asyncio.gather(*ways, return_exceptions=True)
    await keyless.holds(1)
    keyless.stage.release_all()
    assert (await other).text == "hold other"


async def test_a_name_like_that_of_a_wire_takes_no_others_answer(keyless: Served) -> None:
    assert (await keyless.ask("one", request_id="conv-7")).status_code == 200
    victim = keyless.asking("hold the victim's", request_id="conv-7")
    await keyless.holds(1)
    forged = [keyless.asking(f"hold {n}", request_id=f"conv-7~{n}") for n in range(3)]
    forged += [keyless.asking(f"hold {n}", {"x-request-id": f"conv-7~{n}"}) for n in range(3, 5)]
    await keyless.holds(6)
    keyless.stage.release_all()
    assert (await victim).json()["choices"][0]["text"] == "hold the victim's"
    for n, each in enumerate(forged):
        assert (await each).json()["choices"][0]["text"] == f"hold {n}"


async def test_two_owners_of_one_id(two: Any) -> None:
    server, ours, theirs = two
    mine = server.asking("hold mine", ours, request_id="same")
    await server.holds(1)
    hers = server.asking("hold hers", theirs, request_id="same")
    await server.holds(2)
    assert (await server.ask("hold", ours, request_id="same")).status_code == 409

    await server.abort("same", theirs)
    answer = await hers
    assert answer.json()["choices"][0]["finish_reason"] == "abort"
    await server.holds(1)
    server.stage.release_all()
    answer = await mine
    assert answer.json()["choices"][0]["text"] == "hold mine"
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("same", "cmpl-same")


async def test_abort_of_a_foreign_id_is_answered_as_of_an_unknown_one(two: Any) -> None:
    server, ours, theirs = two
    mine = server.asking("hold mine", ours | {"x-request-id": "secret"})
    several = server.asking(["hold a", "hold b"], ours, request_id="parts")
    wire_ids = await server.holds(3)
    foreign = [await server.abort(each, theirs) for each in ("secret", "cmpl-secret", "parts", "parts-0")]
    foreign += [await server.abort(each, theirs) for each in wire_ids]
    unknown = await server.abort("never-seen", theirs)
    for each in foreign:
        assert each | {"request_id": ""} == unknown | {"request_id": ""}
    await server.holds(3)
    server.stage.release_all()
    assert (await mine).json()["choices"][0]["text"] == "hold mine"
    assert [each["text"] for each in (await several).json()["choices"]] == ["hold a", "hold b"]


async def test_a_header_that_others_use_too_is_not_reported(two: Any) -> None:
    """The second owner's answer has the bare id: a suffix would say that it is in use."""
    server, ours, theirs = two
    mine = server.asking("hold mine", ours | {"x-request-id": "shared"})
    await server.holds(1)
    assert (await server.ask("quick", theirs | {"x-request-id": "shared"})).headers[
        "x-request-id"
    ] == "shared"
    late = await server.ask("hold late", theirs | {"x-request-id": "shared"}, timeout=0.2)
    assert (late.status_code, "~" in late.text) == (504, False)
    server.stage.release_all()
    assert (await mine).headers["x-request-id"] == "shared"


async def test_sessions_are_their_owners(two: Any) -> None:
    server, ours, theirs = two
    for way in ({"x-session-id": "chat"}, {}):
        fields = {} if way else {"user": "chat"}
        for owner in (ours, theirs, ours):
            assert (await server.ask("x", owner | way, **fields)).status_code == 200
    first, second, third, *more = server.stage.sessions
    assert first == third != second
    assert more == [first, second, third]
    secrets = [word for owner in (ours, theirs) for word in owner.values()]
    assert not any(word.removeprefix("Bearer ") in str(server.stage.sessions) for word in secrets)


async def test_what_runs_for_another_request_is_no_name_in_the_way(keyless: Served) -> None:
    taken = keyless.asking("hold taken", request_id="several-0")
    await keyless.holds(1)
    several = keyless.asking(["hold a", "hold b"], request_id="several")
    await keyless.holds(3)
    keyless.stage.release_all()
    assert [each["text"] for each in (await several).json()["choices"]] == ["hold a", "hold b"]
    assert (await taken).json()["choices"][0]["text"] == "hold taken"


async def test_the_python_clients_name_an_owner(keyless: Served) -> None:
    def ask() -> None:
        with SyncClient(keyless.base_url) as client:
            assert not client.abort("named").success
            assert not client.abort("named", owner="bob").success
            assert client.abort("named", owner="ann").success

    client = Client(keyless.base_url)
    request = GenerateRequest(prompt="hold", owner="ann")
    asked = asyncio.create_task(client.completion(request, request_id="named"))
    await keyless.holds(1)
    await asyncio.to_thread(ask)
    assert (await asked).finish_reason == "abort"
    local = Client(keyless.coordinator)
    asked = asyncio.create_task(local.completion(request, request_id="named"))
    await keyless.holds(1)
    assert not (await local.abort("named")).success
    assert (await local.abort("named", owner="ann")).success
    assert (await asked).finish_reason == "abort"
    await client.close()
