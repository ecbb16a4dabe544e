"""A request is sent again before the first byte of its answer, if it may be, and never after it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faulty_server import CLOSED, RESET, Act, FaultyServer, completion, http

from sglang_omni.client import ClientError, GenerateRequest, RequestError, ServerUnreachable, SyncClient
from sglang_omni.client.http import retries

CHAT = GenerateRequest(messages=[{"role": "user", "content": "Hi"}])
BUSY = Act(http(503, {"error": {"message": "full", "code": "server_busy"}}, retry_after="0"))
LIMITED = Act(http(429, {"error": {"message": "too many"}}, retry_after="0"))
WHOLE = Act(completion("Hello."))
# By these two answers a server is known to be one of this package's.
OURS = [Act(http(200, {"data": [{"id": "m", "owned_by": "sglang-omni"}]})), Act(http(200, {}))]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.001)


@pytest.fixture
def client() -> Iterator[Callable[..., SyncClient]]:
    made: list[SyncClient] = []

    def make(url: str, **options: Any) -> SyncClient:
        made.append(SyncClient(url, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("failure", [BUSY, LIMITED])
def test_a_server_that_has_not_begun_is_asked_again(failure, client) -> None:
    with FaultyServer([failure, failure, WHOLE]) as server:
        assert client(server.url).completion(CHAT).text == "Hello."
        assert len(server.bodies) == 3


def test_the_last_answer_stands(client) -> None:
    with FaultyServer([BUSY] * 3) as server:
        with pytest.raises(ClientError, match="full") as caught:
            client(server.url).completion(CHAT)
        assert caught.value.status == 503
        assert len(server.bodies) == 3
    with FaultyServer([LIMITED]) as server:
        with pytest.raises(RequestError, match="too many") as refused:
            client(server.url, max_retries=0).completion(CHAT)
        assert refused.value.status == 429


def test_a_server_that_wants_to_be_asked_much_later_is_not_asked(client) -> None:
    later = Act(http(503, {"error": {"message": "later"}}, retry_after="3600"))
    with FaultyServer([later, WHOLE]) as server:
        with pytest.raises(ClientError, match="later"):
            client(server.url).completion(CHAT)
        assert len(server.bodies) == 1


def test_a_date_to_ask_again_at(client) -> None:
    past = Act(http(503, {"error": {"message": "now"}}, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"))
    with FaultyServer([past, WHOLE]) as server:
        assert client(server.url).completion(CHAT).text == "Hello."


def test_the_requests_own_timeout_bounds_the_repetitions(client) -> None:
    soon = Act(http(503, {"error": {"message": "soon"}}, retry_after="50"))
    foreign = Act(http(404, {"error": {"message": "no such route"}}))
    with FaultyServer([foreign, soon, WHOLE]) as server:
        with pytest.raises(ClientError, match="soon"):
            client(server.url).completion(GenerateRequest(prompt="Hi", timeout=1))
        assert server.paths == ["/v1/models", "/v1/completions"]


@pytest.mark.parametrize("failure", [RESET, CLOSED])
def test_a_lost_request_is_repeated_only_under_its_own_id(failure, client) -> None:
    with FaultyServer([*OURS, failure, WHOLE]) as server:
        assert client(server.url).completion(CHAT, request_id="mine").text == "Hello."
        assert [body["request_id"] for body in server.bodies[2:]] == ["mine", "mine"]
    with FaultyServer([failure, WHOLE]) as server:
        with pytest.raises(ClientError, match="no answer from"):
            client(server.url).completion(CHAT)
        assert len(server.bodies) == 1


@pytest.mark.parametrize("failure", [RESET, CLOSED])
def test_what_only_asks_is_repeated(failure, client) -> None:
    voices = Act(http(200, {"voices": ["anna"]}))
    with FaultyServer([failure, voices]) as server:
        assert client(server.url).voices().voices == ["anna"]
    with FaultyServer([failure, Act(http(200, {"success": True}))]) as server:
        assert client(server.url).abort("one").success


@pytest.mark.parametrize("resets", [False, True])
def test_nothing_is_repeated_after_the_first_byte(resets, client) -> None:
    cut = Act(http(200, b'{"choices": [', length=500), resets=resets)
    with FaultyServer([*OURS, cut, WHOLE]) as server:
        with pytest.raises(ClientError, match="no answer from"):
            client(server.url).completion(CHAT, request_id="mine")
        assert len(server.bodies) == 3


def test_a_stream_that_breaks_off_is_an_error(client) -> None:
    event = b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n'
    for length in (len(event), 500):
        with FaultyServer([Act(http(200, event, length=length)), WHOLE]) as server:
            chunks = client(server.url).completion_stream(CHAT)
            assert next(chunks).text == "Hel"
            with pytest.raises(ClientError, match=r"cut off|no answer from"):
                next(chunks)
            assert len(server.bodies) == 1


def test_a_server_that_comes_up_in_the_meantime_is_reached(client, monkeypatch, held_port) -> None:
    server = FaultyServer([WHOLE], held_port)
    failures = []

    def pause(attempt: int, failure: Any) -> float:
        failures.append(type(failure).__name__)
        server.__enter__()
        return 0.0

    monkeypatch.setattr("sglang_omni.client.http.connection.pause_before", pause)
    assert client(f"http://127.0.0.1:{held_port}").completion(CHAT).text == "Hello."
    assert failures == ["ConnectError"]
    server.__exit__()


def test_no_server(client, held_port) -> None:
    url = f"http://127.0.0.1:{held_port}"
    with pytest.raises(ServerUnreachable, match=f"no server answers at {url}: Connection refused"):
        client(url).completion(CHAT)


def test_a_slow_server_is_a_timeout(client, monkeypatch) -> None:
    monkeypatch.setattr("sglang_omni.client.http.call._MARGIN_S", 0.0)
    foreign = Act(http(404, {}))
    with FaultyServer([foreign, Act(holds=True), WHOLE]) as server:
        with pytest.raises(TimeoutError, match="in time"):
            client(server.url).completion(GenerateRequest(prompt="Hi", timeout=0.2))
        assert len(server.paths) == 2


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is an exception here, also if the tests run in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_call_ends_its_request(client) -> None:
    with FaultyServer([Act(holds=True), WHOLE]) as server:
        blocking = client(server.url)
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            next(blocking.completion_stream(CHAT))
        assert blocking.completion(CHAT).text == "Hello."


def test_what_answers_may_be_no_api(client) -> None:
    page = Act(http(200, b"<html>", content_type="text/html"))
    with FaultyServer([page]) as server, pytest.raises(ClientError, match="text/html and not with JSON"):
        client(server.url).completion(CHAT)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:port"])
def test_what_is_no_url(url, client) -> None:
    with pytest.raises(ValueError, match="no URL"):
        client(url)
