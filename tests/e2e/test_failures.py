"""Bad input and killed processes: each fails only its own requests, and the next request works."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import soundfile
from fleet import STOP_DEADLINE, Fleet, wait_until
from processes import command_line, is_alive

HELLO = {"model": "speech-chat", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}


def wav(seconds: float, rate: int = 16_000) -> str:
    out = io.BytesIO()
    soundfile.write(out, np.zeros(int(seconds * rate), np.float32), rate, format="WAV")
    return base64.b64encode(out.getvalue()).decode()


def heard(data: str) -> dict:
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {**HELLO, "messages": [{"role": "user", "content": [part]}]}


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({**HELLO, "model": "no-such-model"}, 404, "model"),
        ({**HELLO, "messages": []}, 400, "messages"),
        ({**HELLO, "max_tokens": -1}, 400, "max_tokens"),
        ({**HELLO, "temperature": float("nan")}, 400, "temperature"),
        ({**HELLO, "no_such_field": 1}, 400, "no_such_field"),
        (heard(base64.b64encode(b"this is not audio").decode()), 400, "input_audio"),
        (heard("%%% not base64 %%%"), 400, "input_audio"),
        (heard(wav(0)), 400, "input_audio"),
        (heard(wav(600)), 400, "input_audio"),
    ],
    ids=[
        "model",
        "empty",
        "negative",
        "nan",
        "unknown-field",
        "no-audio",
        "no-base64",
        "zero-seconds",
        "ten-minutes",
    ],
)
def test_bad_input_names_the_field(api: httpx.Client, body: dict, status: int, names: str) -> None:
    answer = api.post(
        "/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert names in (error["param"] or "") + error["message"]
    assert api.post("/v1/chat/completions", json=HELLO).status_code == 200


def test_prompt_longer_than_the_context_gives_both_lengths(api: httpx.Client) -> None:
    body = {**HELLO, "messages": [{"role": "user", "content": "word " * 9000}]}
    answer = api.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    numbers = [
        int(token) for token in answer.json()["error"]["message"].replace(",", "").split() if token.isdigit()
    ]
    assert len(numbers) >= 2
    assert max(numbers) > 9000


def test_body_over_the_limit_is_refused(api: httpx.Client) -> None:
    answer = api.post(
        "/v1/chat/completions", content=b"x" * (300 << 20), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One replica without a router, whose stages the tests may kill."""
    running = Fleet.launch(tmp_path_factory.mktemp("replica") / "server.log")
    yield running
    running.stop()


def stage_pid(replica: Fleet, stage: str) -> int:
    info = httpx.get(f"{replica.base_url}/get_server_info", timeout=30).json()
    return next(process["pid"] for process in info["processes"] if stage in process["stages"])


def test_killed_stage_fails_its_requests_and_comes_back(replica: Fleet) -> None:
    answers: list[httpx.Response] = []
    ended: list[float] = []

    def long_request() -> None:
        body = {
            **HELLO,
            "messages": [{"role": "user", "content": "Tell a very long story."}],
            "max_tokens": 1500,
        }
        body["ignore_eos"] = True
        answers.append(httpx.post(f"{replica.base_url}/v1/chat/completions", json=body, timeout=120))
        ended.append(time.monotonic())

    asking = threading.Thread(target=long_request)
    asking.start()
    load = f"{replica.base_url}/get_load"
    wait_until(lambda: httpx.get(load, timeout=30).json()["running"] >= 1, 30, "the request never ran")
    pid = stage_pid(replica, "thinker")
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    asking.join(timeout=120)
    assert ended, "the request outlived its stage"
    print(f"the request failed {ended[0] - killed:.3f} s after kill -9")
    assert ended[0] - killed < 5
    assert answers[0].status_code == 503
    assert answers[0].headers["retry-after"]
    assert "thinker" in answers[0].json()["error"]["message"]

    again = httpx.post(f"{replica.base_url}/v1/chat/completions", json=HELLO, timeout=120)
    assert again.status_code == 200, again.text
    assert stage_pid(replica, "thinker") != pid
    replica.remember_descendants()


@pytest.fixture(scope="module")
def broken_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose parts the tests may kill; it ends without orphans all the same."""
    running = Fleet.launch(tmp_path_factory.mktemp("fleet") / "server.log", "--dp-size", "2")
    yield running
    running.stop()


@pytest.mark.parametrize("victim", ["replica", "router"])
def test_killed_part_of_the_fleet_leaves_no_orphan(broken_fleet: Fleet, victim: str) -> None:
    fleet = broken_fleet
    parts = psutil.Process(fleet.process.pid).children()
    routers = [part for part in parts if "router" in command_line(part)]
    replicas = [part for part in parts if "launch_server" in command_line(part)]
    (target, *_) = routers if victim == "router" else replicas
    below = target.children(recursive=True)
    target.kill()
    wait_until(
        lambda: not any(map(is_alive, below)),
        STOP_DEADLINE,
        f"the {victim}'s children outlived it",
    )
    wait_until(fleet.is_ready, 120, f"no service after the {victim} was killed:\n{fleet.tail()}")
    assert httpx.post(f"{fleet.base_url}/v1/chat/completions", json=HELLO, timeout=120).status_code == 200
    fleet.remember_descendants()


def test_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    fleet = Fleet.launch(tmp_path / "server.log", "--dp-size", "2")
    fleet.process.kill()
    fleet.process.wait()
    wait_until(lambda: not fleet.survivors(), STOP_DEADLINE, f"orphans: {fleet.survivors()}")
