"""A server whose HTTP is served by two processes: they are one server to its clients."""

from __future__ import annotations

import json
import os
import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest
from certificates import issued_for
from processes import hear_hangups
from prometheus_client.parser import text_string_to_metric_families
from served_process import ServedProcess
from shouting_server import shouting
from waiting import PATIENCE, wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

CONFIG = """
model_path: none
name: counting
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: count, process: a, factory: served_stages.Counting, terminal: true}}
"""
KEY = "secret"
LIMITS = ("--max-concurrent-requests", "4", "--queue-size", "1", "--queue-timeout", "900")


class Stream:
    """A streamed completion over a connection of its own, read event by event."""

    def __init__(self, server: Counted, prompt: str = "on and on", **fields: Any) -> None:
        self._stack = ExitStack()
        self.client = self._stack.enter_context(server.client())
        self.headers = fields.pop("headers", {})
        body = {"prompt": prompt, "stream": True, **fields}
        self.response = self._stack.enter_context(
            self.client.stream("POST", "/v1/completions", json=body, headers=self.headers)
        )
        self._lines = self.response.iter_lines()
        network = self.response.extensions["network_stream"]
        self.worker = server.worker_of(network.get_extra_info("client_addr")[1])

    def begin(self) -> None:
        """Its first text has come: several numbers if the worker was late."""
        assert self.next_text().startswith(" 0")

    def next_text(self) -> str:
        """Raises httpx.TransportError if the connection ends before the answer does."""
        event = self.next_event()
        return event["choices"][0]["text"] if event["choices"] else ""

    def next_event(self) -> dict[str, Any]:
        for line in self._lines:
            if line.startswith("data: {"):
                return json.loads(line.removeprefix("data: "))
        raise EOFError

    def rest(self) -> list[dict[str, Any]]:
        events = []
        while True:
            try:
                events.append(self.next_event())
            except EOFError:
                return events

    def close(self) -> None:
        self._stack.close()


class Counted:
    """The server, as its clients use it."""

    def __init__(self, process: ServedProcess, release: Path, trusted: ssl.SSLContext | bool = True) -> None:
        self.process = process
        self.trusted = trusted
        self.url = process.base_url
        self.release_file = release

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, verify=self.trusted)

    @contextmanager
    def session(self) -> Iterator[ClientConnection]:
        """A realtime session."""
        url = f"ws://{urlsplit(self.url).netloc}/v1/realtime?model=m"
        with connect(url, additional_headers={"authorization": f"Bearer {KEY}"}) as session:
            assert json.loads(session.recv(PATIENCE))["type"] == "session.created"
            yield session

    def ask(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """A request over a new connection."""
        with self.client() as client:
            return client.get(path) if body is None else client.post(path, json=body)

    @property
    def workers(self) -> dict[str, int]:
        """The process of each."""
        return {each["name"]: each["pid"] for each in self.ask("/get_server_info").json()["api_workers"]}

    def worker_of(self, port: int) -> int:
        """The process that has the connection from this port."""
        for pid in self.workers.values():
            for each in psutil.Process(pid).net_connections("tcp"):
                if each.raddr and each.raddr.port == port:
                    return pid
        raise AssertionError("no worker has the connection")

    def on_both(self, **fields: Any) -> tuple[Stream, Stream]:
        """Two streams, one on each worker."""
        first, second = Stream(self, **fields), Stream(self, **fields)
        assert first.worker != second.worker
        return first, second

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.ask("/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"sglang_omni_{name}" and labels.items() <= sample.labels.items()
        )

    def is_idle(self) -> bool:
        return self.ask("/get_load").json()["num_reqs"] == 0 and self.metric("requests_running") == 0

    def release(self) -> None:
        """Ends all that is being counted."""
        self.release_file.touch()
        wait_until(self.is_idle, lambda: self.process.text)
        self.release_file.unlink()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    folder = tmp_path_factory.mktemp("workers")
    flags = ("--api-workers", "2", "--api-key", KEY, "--served-model-name", "m", *LIMITS)
    with shouting(folder, *flags, config=CONFIG, preexec_fn=hear_hangups) as served:
        yield Counted(served, folder / "release")


@pytest.fixture
def server(process: Counted) -> Iterator[Counted]:
    yield process
    process.release()


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_client_of_either_worker_gets_the_same_answers(server: Counted) -> None:
    first, second = server.on_both()
    for stream in (first, second):
        # While these two are open, the next connections go to each worker in turn.
        stream.begin()
    clients = [openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) for _ in range(2)]
    for client in clients:
        messages: Any = [{"role": "user", "content": "3"}]
        whole = client.chat.completions.create(model="m", messages=messages)
        assert whole.choices[0].message.content == " 0 1 2 3"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 4
        parts = client.chat.completions.create(model="m", messages=messages, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == " 0 1 2 3"
        # Served by the main process, over the same connection.
        assert [model.id for model in client.models.list()] == ["m"]
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            client.chat.completions.create(model="other", messages=messages)
        client.close()
    several = server.ask("/v1/completions", {"prompt": "1", "n": 2, "timings": True}).json()["choices"]
    assert [choice["text"] for choice in several] == [" 0 1"] * 2
    assert all(choice["timings"].keys() == {"count"} for choice in several)
    for stream in (first, second):
        stream.close()


def test_the_rest_of_the_api_is_the_main_processs(server: Counted) -> None:
    assert "<html" in server.ask("/").text
    assert server.ask("/v1/chat/completions").status_code == 405
    assert server.ask("/nowhere").status_code == 404
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "1"}).status_code == 401
    body = {"model": "m", "input": "2", "store": True}
    made = server.ask("/v1/responses", body).json()
    assert server.ask(f"/v1/responses/{made['id']}").json()["output"] == made["output"]
    with server.client() as client:
        body = {"model": "m", "input": "on and on", "stream": True, "store": False}
        with client.stream("POST", "/v1/responses", json=body) as streamed:
            lines = streamed.iter_lines()
            assert "response.created" in next(lines)
            wait_until(lambda: not server.is_idle(), lambda: server.process.text)
    # Its client has left.
    wait_until(server.is_idle, lambda: server.process.text)
    with server.session() as session:
        session.send(json.dumps({"type": "input_audio_buffer.clear"}))
        assert json.loads(session.recv(PATIENCE))["type"] == "input_audio_buffer.cleared"
        assert server.metric("websockets_open") == 1
    wait_until(lambda: server.metric("websockets_open") == 0, lambda: server.process.text)


def test_limits_are_those_of_one_server(server: Counted) -> None:
    streams = [*server.on_both(), *server.on_both()]
    for stream in streams:
        stream.begin()
    with server.client() as leaves, pytest.raises(httpx.ReadTimeout):
        leaves.post("/v1/completions", json={"prompt": "1"}, timeout=0.5)
    wait_until(lambda: server.metric("requests_waiting") == 0, lambda: server.process.text)
    with server.client() as waits:
        answer: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answer.append(waits.post("/v1/completions", json={"prompt": "1"}))
        )
        waiting.start()
        wait_until(lambda: server.metric("requests_waiting") == 1, lambda: server.process.text)
        for _ in range(2):
            refused = server.ask("/v1/completions", {"prompt": "1"})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
            assert "4 requests are running" in refused.json()["error"]["message"]
        large = server.ask("/v1/completions", {"prompt": "x" * 100_000})
        assert large.status_code == 429
        assert server.metric("requests_refused_total", reason="queue_full") == 3
        assert server.metric("requests_running") == 4
        # The place of a client that leaves goes to the one that waits.
        streams.pop().close()
        waiting.join(PATIENCE)
        assert answer[0].json()["choices"][0]["text"] == " 0 1"
    for stream in streams:
        stream.close()


def test_ids_are_the_whole_servers(server: Counted) -> None:
    first, second = server.on_both(headers={"x-request-id": "called"})
    ids = [each.response.headers["x-request-id"] for each in (first, second)]
    assert ids[0] == "called"
    assert ids[1].startswith("called-")
    chosen = Stream(server, request_id="chosen")
    chosen.begin()
    for _ in range(2):
        again = server.ask("/v1/completions", {"prompt": "1", "request_id": "chosen"})
        assert again.status_code == 409
        assert again.json()["error"]["code"] == "duplicate_request_id"
    for each in (first, second, chosen):
        each.close()


def test_a_request_of_any_worker_is_aborted_by_its_id(server: Counted) -> None:
    streams = [Stream(server, headers={"x-request-id": f"r{index}"}) for index in range(2)]
    assert streams[0].worker != streams[1].worker
    for index, stream in enumerate(streams):
        stream.begin()
        assert server.ask("/abort_request", {"request_id": f"cmpl-r{index}"}).json()["success"]
        last = stream.rest()[-1]
        assert last["choices"][0]["finish_reason"] == "abort"
        stream.close()
    assert not server.ask("/abort_request", {"request_id": "r0"}).json()["success"]


def test_metrics_and_history_are_of_all_requests(server: Counted) -> None:
    def counted() -> tuple[float, ...]:
        return (
            server.metric("requests_total", path="/v1/completions", status="200"),
            server.metric("time_to_first_token_seconds_count"),
            server.metric("request_success_total", finished_reason="stop"),
            server.metric("generation_tokens_total"),
            server.metric("tokens_total", kind="completion"),
        )

    before, between = counted(), server.metric("inter_token_latency_seconds_count")
    streams = [Stream(server, "9", request_id=f"count-{index}") for index in range(2)]
    assert streams[0].worker != streams[1].worker
    for stream in streams:
        stream.rest()
        stream.close()
    wait_until(lambda: counted()[0] == before[0] + 2, lambda: server.process.text)
    assert [after - was for after, was in zip(counted(), before, strict=True)] == [2, 2, 2, 20, 20]
    assert server.metric("inter_token_latency_seconds_count") > between
    assert server.metric("requests_in_flight") == 1  # the scrape itself
    for index in range(2):
        (seen,) = server.ask(f"/pipeline/requests?id=count-{index}").json()["requests"]
        assert server.ask(f"/traces/cmpl-count-{index}").status_code == 200
        assert seen["began"] < seen["ended"] <= seen["now"]


def test_a_killed_worker_loses_its_own_connections_alone_and_comes_back(
    server: Counted, cleanup: ExitStack
) -> None:
    before = server.metric("requests_total")
    streams = [*server.on_both(), *server.on_both()]
    for stream in streams:
        stream.begin()
    sessions = [cleanup.enter_context(server.session()) for _ in range(2)]
    dead = streams[0].worker
    of_dead, of_spared = sorted(sessions, key=lambda each: server.worker_of(each.local_address[1]) != dead)
    doomed = [stream for stream in streams if stream.worker == dead]
    spared = [stream for stream in streams if stream.worker != dead]
    os.kill(dead, signal.SIGKILL)
    for stream in doomed:
        with pytest.raises(httpx.TransportError):
            stream.rest()
        stream.close()
    # The others go on, and nothing of the dead one's is left anywhere.
    for stream in spared:
        numbers = [int(number) for _ in range(20) for number in stream.next_text().split()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    with pytest.raises(ConnectionClosed):
        of_dead.recv(PATIENCE)
    of_spared.send(json.dumps({"type": "input_audio_buffer.clear"}))
    assert json.loads(of_spared.recv(PATIENCE))["type"] == "input_audio_buffer.cleared"
    wait_until(lambda: server.metric("websockets_open") == 1, lambda: server.process.text)
    of_spared.close()
    wait_until(lambda: server.metric("requests_running") == 2, lambda: server.process.text)
    assert server.ask("/get_load").json()["running"] == 2
    wait_until(lambda: dead not in server.workers.values(), lambda: server.process.text)
    server.process.wait_for(lambda: "is up" in server.process.text, "the worker does not come back")
    assert "was killed by SIGKILL" in server.process.text
    assert server.metric("requests_total") >= before
    assert server.metric("requests_in_flight") == 3  # two streams and the scrape
    # The new one has the fewest connections.
    again = Stream(server)
    assert again.worker not in (dead, spared[0].worker)
    for stream in (again, *spared):
        assert stream.next_text()
        stream.close()


def test_one_that_hangs_is_ended_and_requests_end_before_the_server_does(tmp_path: Path) -> None:
    """Over TLS."""
    chain, key, trusting = issued_for("127.0.0.1", tmp_path)
    flags = ("--api-workers", "2", "--api-key", KEY, "--heartbeat-timeout", "5", *LIMITS)
    tls = ("--ssl-certfile", str(chain), "--ssl-keyfile", str(key))
    with shouting(tmp_path, *flags, *tls, config=CONFIG, preexec_fn=hear_hangups) as served:
        server = Counted(served, tmp_path / "release", trusting)
        os.kill(server.workers["api-worker-1"], signal.SIGSTOP)
        served.wait_for(lambda: "api-worker-1 has not answered for" in served.text, "it is not missed")
        served.wait_for(lambda: "api-worker-1 is up" in served.text, "it does not come back")
        streams = server.on_both()
        for stream in streams:
            stream.begin()
        served.process.send_signal(signal.SIGTERM)
        served.wait_for(lambda: "waiting up to" in served.text, "it does not drain")
        refused = server.ask("/v1/completions", {"prompt": "1"})
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        (tmp_path / "release").touch()
        for stream in streams:
            assert stream.rest()[-1]["choices"][0]["finish_reason"] == "stop"
            stream.close()
        assert served.process.wait(PATIENCE) == 0
        served.assert_nothing_left()
        assert "Traceback" not in served.text
