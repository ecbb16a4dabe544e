"""A real fleet, once for all end-to-end tests: two replicas of the spoken chat behind the router."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fleet import RUN_KEY
from served_process import ServedProcess

_FOLDER = Path(__file__).parent
_fleets: list[ServedProcess] = []


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    running = ServedProcess(
        tmp_path_factory.mktemp("fleet") / "server.log", "--dp-size", "2", "--router-worker-api-key", RUN_KEY
    )
    _fleets.append(running)
    assert running.base_url
    yield running
    _stop()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the fleet after the last of these tests: it has several GiB, and a session goes on with others."""
    if _FOLDER in item.path.parents and (nextitem is None or _FOLDER not in nextitem.path.parents):
        _stop()


def _stop() -> None:
    while _fleets:
        _fleets.pop().stop()


@pytest.fixture(scope="session")
def api(fleet: ServedProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.base_url, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def say(api: httpx.Client) -> Callable[[str], bytes]:
    """Text to a WAV file's bytes, spoken by the server itself."""

    def speak(text: str) -> bytes:
        answer = api.post(
            "/v1/audio/speech",
            json={"model": "speech-chat", "input": text, "voice": "default", "response_format": "wav"},
        )
        assert answer.status_code == 200, answer.text
        return answer.content

    return speak
