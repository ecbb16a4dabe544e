"""Where a media part's bytes come from."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.proto import RequestError

DATA = bytes(range(256))
PARAM = "messages[0].content[0].audio_url.url"


def read(source: object, *, max_bytes: int = 10_000, allowed_hosts: tuple[str, ...] = ()) -> bytes:
    return media_bytes(source, param=PARAM, max_bytes=max_bytes, allowed_hosts=allowed_hosts)


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


@pytest.mark.parametrize("allowed", [("127.0.0.1",), ("*",)])
def test_an_allowed_host_is_fetched_from(origin: str, allowed: tuple[str, ...]) -> None:
    assert read(f"{origin}/clip", allowed_hosts=allowed) == DATA


@pytest.mark.parametrize(
    ("path", "allowed", "text"),
    [
        ("/clip", (), "allowed_media_hosts"),
        ("/clip", ("example.org",), "'127.0.0.1'"),
        ("/elsewhere", ("127.0.0.1",), "'localhost'"),
        ("/loop", ("127.0.0.1",), "redirects more than 3 times"),
        ("/nothing", ("127.0.0.1",), "404"),
    ],
)
def test_other_fetches_are_refused(origin: str, path: str, allowed: tuple[str, ...], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        read(f"{origin}{path}", allowed_hosts=allowed)


def test_a_fetch_stops_at_the_limit(origin: str) -> None:
    with pytest.raises(RequestError, match="the limit is"):
        read(f"{origin}/clip", max_bytes=100, allowed_hosts=("*",))
