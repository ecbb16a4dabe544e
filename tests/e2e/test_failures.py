"""Bad input and killed processes: each fails only its own requests, and the next request works."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
from fleet import RUN_KEY
from processes import is_alive
from sample_media import silence
from served_process import ServedProcess, served_process
from waiting import PATIENCE, wait_until

HELLO = {"model": "speech-chat", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}


def heard(data: str | bytes) -> dict:
    if isinstance(data, bytes):
        data = base64.b64encode(data).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {**HELLO, "messages": [{"role": "user", "content": [part]}]}


BAD: dict[str, tuple[dict, int, str]] = {
    "model": ({**HELLO, "model": "no-such-model"}, 404, "model"),
    "empty": ({**HELLO, "messages": []}, 400, "messages"),
    "negative": ({**HELLO, "max_tokens": -1}, 400, "max_tokens"),
    "nan": ({**HELLO, "temperature": float("nan")}, 400, "temperature"),
    "unknown field": ({**HELLO, "no_such_field": 1}, 400, "no_such_field"),
    "no audio": (heard(b"this is not audio"), 400, "input_audio"),
    "no base64": (heard("%%% not base64 %%%"), 400, "input_audio"),
    "zero seconds": (heard(silence(0, kind="WAV")), 400, "input_audio"),
    "ten minutes": (heard(silence(600, kind="WAV")), 400, "input_audio"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_field(api: httpx.Client, case: str) -> None:
    body, status, names = BAD[case]
    answer = api.post(
        "/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert names in (error["param"] or "") + error["message"]
    assert api.post("/v1/chat/completions", json=HELLO).status_code == 200


def test_body_over_the_limit_is_refused(api: httpx.Client) -> None:
    answer = api.post(
        "/v1/chat/completions", content=b"x" * (300 << 20), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def broken_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """A fleet whose parts the tests may kill: first a stage, then a replica, the router, the launcher."""
    log = tmp_path_factory.mktemp("fleet") / "server.log"
    with served_process(log, "--dp-size", "2", "--router-worker-api-key", RUN_KEY) as running:
        yield running


def stage_pid(replica: httpx.Client, stage: str) -> int:
    info = replica.get("/get_server_info").json()
    return next(process["pid"] for process in info["processes"] if stage in process["stages"])


def test_killed_stage_fails_its_requests_and_comes_back(broken_fleet: ServedProcess) -> None:
    url = httpx.get(f"{broken_fleet.base_url}/workers", timeout=30).json()["workers"][0]["url"]
    replica = httpx.Client(base_url=url, headers={"authorization": f"Bearer {RUN_KEY}"}, timeout=120)
    answers: list[httpx.Response] = []

    def long_request() -> None:
        answers.append(
            replica.post("/v1/chat/completions", json={**HELLO, "max_tokens": 1500, "ignore_eos": True})
        )

    asking = threading.Thread(target=long_request)
    asking.start()
    wait_until(lambda: replica.get("/get_load").json()["running"] >= 1, "the request never ran")
    pid = stage_pid(replica, "thinker")
    os.kill(pid, signal.SIGKILL)
    asking.join(PATIENCE)
    assert answers, "the request outlived its stage"
    assert answers[0].status_code == 503
    assert answers[0].headers["retry-after"]
    assert "thinker" in answers[0].json()["error"]["message"]

    again = replica.post("/v1/chat/completions", json=HELLO)
    assert again.status_code == 200, again.text
    assert stage_pid(replica, "thinker") != pid
    broken_fleet.children()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("victim", ["replica", "router"])
def test_killed_part_of_the_fleet_leaves_no_orphan(broken_fleet: ServedProcess, victim: str) -> None:
    fleet = broken_fleet
    (target, *_) = fleet.children("router" if victim == "router" else "launch_server")
    below = target.children(recursive=True)
    target.kill()
    wait_until(lambda: not any(map(is_alive, below)), f"the {victim}'s children outlived it")
    fleet.wait_for(lambda: is_ready(fleet.base_url), f"no service after the {victim} was killed")
    assert httpx.post(f"{fleet.base_url}/v1/chat/completions", json=HELLO, timeout=120).status_code == 200
    fleet.children()


def test_killed_launcher_leaves_nothing(broken_fleet: ServedProcess) -> None:
    broken_fleet.children()
    broken_fleet.process.kill()
    broken_fleet.process.wait()
    broken_fleet.assert_nothing_left()
