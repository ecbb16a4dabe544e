"""A request's one id, through a router and a server as users start them: each in processes of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
from served_process import ServedProcess, importing, served_process
from waiting import PATIENCE

HERE = Path(__file__).parent
CONFIG = """
model_path: none
name: words
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: say, process: say, factory: served_stages.Speaker, terminal: true}}
"""


@dataclass
class Pair:
    """A server and a router before it."""

    router: ServedProcess
    server: ServedProcess


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("fleet")
    config = folder / "words.yaml"
    config.write_text(CONFIG.format(folder=folder))
    with (
        served_process(folder / "server.log", "--config", str(config), env=importing(HERE)) as server,
        served_process(
            *(folder / "router.log", "--worker-urls", server.base_url, "--access-log"), module="launch_router"
        ) as router,
    ):
        yield Pair(router, server)


@pytest.mark.parametrize("way", ["router", "server"])
@pytest.mark.parametrize("form", ["bare", "answer's"])
def test_openais_request_id_aborts_its_stream_and_finds_the_logs(fleet: Pair, way: str, form: str) -> None:
    with openai.OpenAI(base_url=f"{fleet.router.base_url}/v1", api_key="none", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="words", messages=[{"role": "user", "content": "a b HANG"}], stream=True
        )
        shown, chunks = raw.request_id, iter(raw.parse())
        assert shown is not None
        first = next(chunks)
        assert first.id == f"chatcmpl-{shown}"

        named = shown if form == "bare" else first.id
        url = (fleet.router if way == "router" else fleet.server).base_url
        answer = httpx.post(f"{url}/abort_request", json={"request_id": named}, timeout=PATIENCE)
        assert answer.json()["success"] is True
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "abort"
    fleet.server.wait_for(lambda: "is aborted" in fleet.server.lines(shown), "no line")
    fleet.router.wait_for(lambda: fleet.router.lines(f"id={shown} "), "no line")


def test_a_whole_answers_request_id_is_its_id(fleet: Pair) -> None:
    with openai.OpenAI(base_url=f"{fleet.router.base_url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="words",
            messages=[{"role": "user", "content": "a b"}],
            extra_headers={"X-Request-ID": "mine"},
        )
        assert (answer._request_id, answer.id) == ("mine", "chatcmpl-mine")
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nothing", messages=[{"role": "user", "content": "a"}])
    refused = caught.value.request_id
    assert refused is not None
    fleet.server.wait_for(lambda: fleet.server.lines(refused), "no line")
    assert "was answered with 404" in fleet.server.lines(refused).splitlines()[0]


def test_a_stages_failure_is_logged_by_stage_server_and_router_under_one_id(fleet: Pair) -> None:
    body = {"messages": [{"role": "user", "content": "FAIL HANG"}]}
    url = f"{fleet.router.base_url}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=PATIENCE)
    shown = answer.headers["x-request-id"]
    assert answer.status_code == 500

    def lines() -> list[str]:
        return fleet.server.lines(shown).splitlines()

    fleet.server.wait_for(lambda: len(lines()) >= 2, "no lines")
    assert any(f"Stage say: request {shown} failed" in line for line in lines())
    assert any(f"Request {shown} failed: stage 'say'" in line for line in lines())
    fleet.router.wait_for(lambda: fleet.router.lines(shown), "no line")


def test_an_id_of_the_body_is_the_routers_too(fleet: Pair) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "request_id": "chosen"}
    answer = httpx.post(f"{fleet.router.base_url}/v1/chat/completions", json=body, timeout=PATIENCE)
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("chosen", "chatcmpl-chosen")
    fleet.router.wait_for(lambda: fleet.router.lines("id=chosen "), "no line")
