"""Sources of media: base64, data URLs, and URLs on allowed hosts."""

from __future__ import annotations

import base64
import errno
import socket
import threading
import time
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from sglang_omni.preprocessing import media
from sglang_omni.preprocessing.deadline import Aborted, Check, go_on
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.proto import RequestError

DATA = bytes(range(256))
PARAM = "messages[0].content[0].audio_url.url"


def read(
    source: object, *, max_bytes: int = 10_000, allowed_hosts: Collection[str] = (), check: Check = go_on
) -> bytes:
    return media_bytes(source, param=PARAM, max_bytes=max_bytes, allowed_hosts=allowed_hosts, check=check)


@pytest.mark.parametrize(
    "source",
    [
        DATA,
        base64.b64encode(DATA).decode(),
        base64.b64encode(DATA).decode().rstrip("="),
        base64.urlsafe_b64encode(DATA).decode(),
        base64.encodebytes(DATA).decode(),
        "data:audio/wav;base64," + base64.b64encode(DATA).decode(),
        "DATA:;base64," + base64.b64encode(DATA).decode(),
        "data:audio/wav," + "".join(f"%{byte:02x}" for byte in DATA),
    ],
)
def test_inline_forms(source: object) -> None:
    assert read(source) == DATA


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", "is empty"),
        ("data:audio/wav;base64,", "is empty"),
        ("not*base64", "not valid base64"),
        ("abcde", "not valid base64"),
        ("YQ==YQ==", "padding in the middle"),
        ("YWJj\u00e9", "not valid base64"),
        ("file:///etc/passwd", "file: URL"),
        ("ftp://host/file", "ftp: URL"),
        (17, "got int"),
        (None, "got NoneType"),
    ],
)
def test_malformed_sources_are_refused(source: object, text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        read(source)
    assert refused.value.param == PARAM


def test_too_much_is_refused() -> None:
    with pytest.raises(RequestError, match="the limit is") as refused:
        read(DATA, max_bytes=255)
    assert refused.value.status == 413


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/clip":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(DATA)
        elif self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("location", "http://localhost:9/clip")
            self.end_headers()
        elif self.path == "/loop":
            self.send_response(302)
            self.send_header("location", "/loop")
            self.end_headers()
        elif self.path == "/trickle":
            self.send_response(200)
            self.end_headers()
            # Ends when the other side has gone.
            while True:
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)
        else:
            self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_allowed_host_is_fetched_from(origin: str) -> None:
    for allowed in (origin.removeprefix("http://"), "*"):
        assert read(f"{origin}/clip", allowed_hosts=[allowed]) == DATA


@pytest.mark.parametrize(
    ("url", "allowed", "is_allowed"),
    [
        ("http://media.test/a", "media.test", True),
        ("https://media.test:443/a", "media.test", True),
        ("http://media.test/a", "media.test:80", True),
        ("https://media.test:8443/a", "media.test:8443", True),
        ("http://[::1]:90/a", "[::1]:90", True),
        ("http://media.test:8080/a", "media.test", False),
        ("http://media.test:443/a", "media.test", False),
        ("http://media.test:81/a", "media.test:80", False),
        ("https://media.test/a", "media.test:80", False),
        ("http://media.test@other.test/a", "media.test", False),
        ("http://media.test:99999/a", "*", False),
    ],
)
def test_ports_of_allowed_hosts(url: str, allowed: str, is_allowed: bool) -> None:
    # The name leads nowhere: only what is refused before it is looked up.
    with pytest.raises(RequestError) as refused:
        read(url, allowed_hosts=[allowed])
    assert (refused.value.code == "media_not_fetched") == is_allowed


@pytest.mark.parametrize(
    ("path", "allowed", "text"),
    [
        ("/clip", (), "--allowed-media-hosts"),
        ("/clip", ("example.org",), "'127.0.0.1:"),
        ("/clip", ("127.0.0.1",), "with its port"),
        ("/elsewhere", ("this",), "'localhost:9'"),
        ("/loop", ("this",), "redirects more than 3 times"),
        ("/nothing", ("this",), "404"),
    ],
)
def test_other_fetches_are_refused(origin: str, path: str, allowed: tuple[str, ...], text: str) -> None:
    allowed = tuple(origin.removeprefix("http://") if host == "this" else host for host in allowed)
    with pytest.raises(RequestError, match=text):
        read(f"{origin}{path}", allowed_hosts=allowed)


def test_a_fetch_stops_at_the_limit(origin: str) -> None:
    with pytest.raises(RequestError, match="the limit is"):
        read(f"{origin}/clip", max_bytes=100, allowed_hosts=("*",))


@pytest.mark.parametrize("path", ["/trickle", "/silent"])
def test_a_host_that_sends_a_byte_now_and_then_holds_no_thread(
    origin: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "_FETCH_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{origin}/trickle" if path == "/trickle" else f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(RequestError, match=r"could not be fetched within 0\.5 s"):
            read(url, allowed_hosts=["*"])


def test_no_descriptor_for_a_connection_is_not_the_requests_mistake(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*_: object, **__: object) -> None:
        # As it looks where several addresses were tried.
        raise OSError("All connection attempts failed") from OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(anyio, "connect_tcp", connect)
    with pytest.raises(OSError, match="Too many open files"):
        read(f"{origin}/clip", allowed_hosts=["*"])


def test_a_fetch_ends_with_its_request(origin: str) -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Aborted

    with pytest.raises(Aborted):
        read(f"{origin}/trickle", allowed_hosts=["*"], check=check)


def test_base64_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_BLOCK", 7)
    for length in range(1, 40):
        text = base64.encodebytes(DATA[-length:]).decode()
        for written in (text, text.rstrip("=\n"), text.replace("+", "-").replace("/", "_")):
            assert read(written) == DATA[-length:]
