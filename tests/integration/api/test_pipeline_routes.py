"""What a client learns of the inside of a server: the pipeline's shape, its load, and its own requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from owned_server import Served, served
from waiting import PATIENCE

from sglang_omni.config import PipelineConfig, StageConfig, plan_pipeline
from sglang_omni.config.draw.graph import PipelineGraph, pipeline_graph
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.auth import ADMIN_PATHS

ONE, OTHER = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}


def graph() -> PipelineGraph:
    stages = [
        StageConfig(
            name="read", process="p", factory="secret.place.make", next=["say", "speak"], node="host-7"
        ),
        StageConfig(name="say", process="p", factory="secret.place.make", next="speak", node="host-7"),
        StageConfig(name="speak", process="q", factory="secret.place.make", terminal=True, node="host-7"),
    ]
    return pipeline_graph(
        plan_pipeline(PipelineConfig(model_path="/secret/path", name="three", stages=stages))
    )


@pytest.fixture
async def keyed() -> AsyncIterator[Served]:
    async with served(access=Access(api_keys=("one", "other")), graph=graph()) as server:
        yield server


async def passage(server: Served, name: str, headers: dict[str, str]) -> dict[str, Any]:
    (reported,) = await requests(server, name, headers)
    return reported


async def requests(server: Served, name: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    answer = await server.http.get("/pipeline/requests", params={"id": name}, headers=headers)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["requests"])


async def test_the_shape_says_what_goes_where_and_no_path_or_host(keyed: Served) -> None:
    answer = await keyed.http.get("/pipeline", headers=ONE)
    shape = answer.json()
    assert [(each["name"], each["layer"], each["process"]) for each in shape["stages"]] == [
        ("read", 0, "p"),
        ("say", 1, "p"),
        ("speak", 2, "q"),
    ]
    paths = {(edge["source"], edge["target"]): [at[0] for at in edge["path"]] for edge in shape["edges"]}
    assert paths == {("read", "say"): [0, 1], ("read", "speak"): [0, 1, 2], ("say", "speak"): [1, 2]}
    assert "secret" not in answer.text
    assert "host-7" not in answer.text
    assert not any(path.startswith("/pipeline") for path in ADMIN_PATHS)


async def test_without_a_graph_there_is_nothing_to_draw() -> None:
    async with served() as server:
        answer = await server.http.get("/pipeline")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_supported")


async def test_the_load_is_that_of_the_moment_and_the_totals_grow(keyed: Served) -> None:
    first = (await keyed.http.get("/pipeline/load", headers=ONE)).json()
    assert first["stages"]["say"]["held"] == 0
    asked = [keyed.asking("hold", ONE) for _ in range(2)]
    await keyed.holds(2)
    busy = (await keyed.http.get("/pipeline/load", headers=OTHER)).json()
    assert busy["stages"]["say"]["held"] == busy["requests"]["running"] == 2
    keyed.stage.release_all()
    await asyncio.gather(*asked)
    # A stage reports the end of a visit a moment after its result.
    async with asyncio.timeout(PATIENCE):
        while (after := (await keyed.http.get("/pipeline/load", headers=ONE)).json())["stages"]["say"][
            "visits"
        ] < 2:
            await asyncio.sleep(0.02)
    assert after["stages"]["say"]["held"] == 0
    assert after["stages"]["say"]["work_s"] + after["stages"]["say"]["wait_s"] > 0
    assert after["requests"]["completed"] == first["requests"]["completed"] + 2
    assert after["at"] > first["at"]


async def test_a_request_is_followed_by_its_owner_alone(keyed: Served) -> None:
    asked = keyed.asking("hold", ONE | {"x-request-id": "mine"})
    await keyed.holds(1)
    for name in ("mine", "cmpl-mine"):
        reported = await passage(keyed, name, ONE)
        assert (reported["id"], reported["state"], reported["at"], reported["ended"]) == (
            "mine",
            "running",
            ["say"],
            None,
        )
    assert await requests(keyed, "mine", OTHER) == await requests(keyed, "none", ONE) == []
    keyed.stage.release_all()
    await asked
    async with asyncio.timeout(PATIENCE):
        while not (reported := await passage(keyed, "mine", ONE))["visits"]:
            await asyncio.sleep(0.02)
    (visit,) = reported["visits"]
    assert (reported["state"], reported["at"], visit["stage"]) == ("completed", [], "say")
    assert reported["began"] <= visit["began"] <= reported["ended"]
    assert visit["work_s"] + visit["wait_s"] <= reported["now"] - reported["began"]


async def test_which_request_must_be_said(keyed: Served) -> None:
    answer = await keyed.http.get("/pipeline/requests", headers=ONE)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id")


async def test_a_request_that_was_stopped_says_so(keyed: Served) -> None:
    asked = keyed.asking("hold", ONE | {"x-request-id": "left"})
    await keyed.holds(1)
    await keyed.abort("left", ONE)
    await asked
    reported = await passage(keyed, "left", ONE)
    assert reported["state"] in ("aborted", "failed")
    assert reported["at"] == []
    assert reported["ended"] is not None


async def test_choices_of_one_request_are_reported_together(keyed: Served) -> None:
    asked = keyed.asking("hold", ONE | {"x-request-id": "two"}, n=2)
    wire_ids = await keyed.holds(2)
    keyed.stage.release(wire_ids[0])
    async with asyncio.timeout(PATIENCE):
        while not (reported := await passage(keyed, "two", ONE))["visits"]:
            await asyncio.sleep(0.02)
    assert (reported["state"], reported["at"]) == ("running", ["say"])
    keyed.stage.release_all()
    await asked
    async with asyncio.timeout(PATIENCE):
        while len((await passage(keyed, "two", ONE))["visits"]) < 2:
            await asyncio.sleep(0.02)


async def test_a_later_request_of_the_same_name_is_the_one_reported(keyed: Served) -> None:
    await keyed.ask("hi", ONE | {"x-request-id": "again"})
    began = (await passage(keyed, "again", ONE))["began"]
    asked = keyed.asking("hold", ONE | {"x-request-id": "again"})
    await keyed.holds(1)
    reported = await passage(keyed, "again", ONE)
    assert reported["state"] == "running"
    assert reported["began"] > began
    assert reported["visits"] == []
    keyed.stage.release_all()
    await asked
