"""A small Hugging Face hub: what huggingface_hub asks of one, from folders here."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHA = "5" * 40


class FakeHub(ThreadingHTTPServer):
    """
    Attributes:
        requests: How often each path was asked for; ``PART`` is the method of a request for some bytes.
        tokens: The authorizations that came.
        sent: Bytes of files that were sent, by their names.
    """

    def __init__(self, repos: Mapping[str, Path], gated: frozenset[str] = frozenset()) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos = repos
        self.gated = gated
        self.requests: Counter[str] = Counter()
        self.tokens: set[str] = set()
        self.sent: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        method = "PART" if "range" in self.headers else self.command
        self.server.requests[f"{method} {path}"] += 1
        self.server.tokens.add(self.headers.get("authorization") or "")
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"]:
            self._api("/".join(words[2:4]), words[4:], body=body)
        elif words[2:3] == ["resolve"]:
            self._file("/".join(words[:2]), "/".join(words[4:]), body=body)
        else:
            self._send(404, {}, b"", body=body)

    def _api(self, repo: str, rest: list[str], *, body: bool) -> None:
        if repo not in self.server.repos:
            self._send(401, {"x-error-code": "RepoNotFound"}, b"{}", body=body)
        elif rest[:1] == ["revision"] and rest[1] not in ("main", "v1", SHA):
            self._send(404, {"x-error-code": "RevisionNotFound"}, b"{}", body=body)
        elif rest[:1] == ["tree"]:
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self._files(repo)
            ]
            self._send(200, {}, json.dumps(files).encode(), body=body)
        else:
            siblings = [{"rfilename": name} for name, _ in self._files(repo)]
            info = {"_id": "1", "id": repo, "sha": SHA, "siblings": siblings, "private": False}
            self._send(200, {}, json.dumps(info).encode(), body=body)

    def _file(self, repo: str, name: str, *, body: bool) -> None:
        if repo in self.server.gated:
            self._send(401, {"x-error-code": "GatedRepo", "x-error-message": "no"}, b"", body=body)
            return
        data = (self.server.repos[repo] / name).read_bytes()
        headers = {"etag": f'"{hashlib.sha1(data).hexdigest()}"', "x-repo-commit": SHA}
        if (wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range") or "")) is None:
            self.server.sent[name] += len(data) if body else 0
            self._send(200, headers, data, body=body)
            return
        part = data[int(wanted[1]) : int(wanted[2]) + 1]
        headers["content-range"] = f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(data)}"
        self.server.sent[name] += len(part)
        self._send(206, headers, part, body=body)

    def _files(self, repo: str) -> Iterator[tuple[str, bytes]]:
        folder = self.server.repos[repo]
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                yield str(file.relative_to(folder)), file.read_bytes()

    def _send(self, status: int, headers: Mapping[str, str], data: bytes, *, body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


@contextmanager
def fake_hub(repos: Mapping[str, Path], gated: frozenset[str] = frozenset()) -> Iterator[FakeHub]:
    """A hub with the repositories ``repos``, by id; the files of those in ``gated`` are refused."""
    with FakeHub(repos, gated) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
