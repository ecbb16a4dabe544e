"""Every file of ``tests/attacks`` is sent to a server, and to a router before one: each answers as the file
says, no more and no less, and goes on to serve others.

A file has its reason, the answer, an empty line, and the bytes. The answer is a status, with or without an
error's code, or ``none``; then ``closed`` if the connection ends behind it, and ``unseen`` if the server's
application is to see nothing. The line ``answers`` is for both fronts; one of them may have its own. Line
ends of the bytes do not count. ``\\r``, ``\\n``, ``\\t``, ``\\\\`` and ``\\xFF`` are bytes, ``{9*ab}`` is
"ab" nine times, and ``{length}`` how many bytes follow the first empty line that is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from router_harness import Answer, read_answer, router
from scripted_pipeline import CAPABILITIES, ScriptedPipeline, listening
from starlette.types import ASGIApp, Receive, Scope, Send
from waiting import PATIENCE

from sglang_omni.client import Client
from sglang_omni.preprocessing.audio import decode_audio
from sglang_omni.preprocessing.image import decode_image
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.messages import parse_messages
from sglang_omni.proto import OmniRequest
from sglang_omni.serve import create_app

FILES = sorted((Path(__file__).parents[1] / "attacks").glob("*.http"))
HELLO = json.dumps({"prompt": "Hi"}).encode()
PLAIN = (
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
# Codes of frames that close a WebSocket.
CLOSES = re.compile(rb"\x88.\x03", re.S)
MODELS = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
MAX_BYTES = 1 << 24


@dataclass(frozen=True)
class Expected:
    """
    Attributes:
        status: None: it is closed without an answer.
        code: The error's; None: any.
        closes: True if the connection ends behind the answer.
        is_unseen: True if the server's application sees nothing.
    """

    status: int | None
    code: str | None
    closes: bool
    is_unseen: bool


def read(file: Path, front: str) -> tuple[bytes, Expected]:
    """What is sent, and what this front answers."""
    head, _, body = file.read_text(encoding="utf-8").partition("\n\n")
    said = dict(re.findall(r"^# (answers|server|router): (.+)$", head, re.M))
    found = re.fullmatch(
        r"(\d+|none)(?: (\w+))?(, closed)?(, unseen)?", said.get(front) or said.get("answers", "")
    )
    assert found is not None, head
    text = body.replace("\n", "")
    text = re.sub(r"\{(\d+)\*([^}]*)\}", lambda found: int(found[1]) * found[2], text)
    start, ends, rest = re.sub(r"\\x(..)|\\(.)", _byte, text).encode("latin-1").partition(b"\r\n\r\n")
    status = None if found[1] == "none" else int(found[1])
    return (
        start.replace(b"{length}", str(len(rest)).encode()) + ends + rest,
        Expected(status, found[2], found[3] is not None, found[4] is not None),
    )


def _byte(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else {"r": "\r", "n": "\n", "t": "\t", "\\": "\\"}[found[2]]


class ReadsMedia(ScriptedPipeline):
    """Decodes what a request brings, as pipelines do, before it answers."""

    async def submit(self, request_id: str, request: OmniRequest) -> object:
        await asyncio.to_thread(_decode, request)
        return await super().submit(request_id, request)


def _decode(request: OmniRequest) -> None:
    if "audio" in request.inputs:
        decode_audio(request.inputs["audio"], param="file")
    if "messages" in request.inputs:
        for part in parse_messages(request.inputs["messages"], ("image", "audio"))[1]:
            data = media_bytes(part.source, param=part.param, max_bytes=MAX_BYTES)
            (decode_image if part.kind == "image" else decode_audio)(data, param=part.param)


class Seen:
    """The app, and the paths that were asked of it but for what routers ask by themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (b"user-agent", b"sglang-omni-router") not in scope["headers"] and scope["path"] != "/health":
            self.paths.append(scope["path"])
        await self._app(scope, receive, send)


@dataclass
class Fronts:
    urls: dict[str, str]
    seen: Seen
    pipeline: ScriptedPipeline


@pytest.fixture(scope="module")
def fronts() -> Iterator[Fronts]:
    pipeline = ReadsMedia()
    can = replace(CAPABILITIES, input_modalities=frozenset({"text", "audio", "image"}))
    seen = Seen(create_app(Client(pipeline), model_name="scripted", capabilities=can))
    with listening(seen) as server, asyncio.Runner() as runner:
        routing = contextlib.AsyncExitStack()
        routed = runner.run(routing.enter_async_context(router(server)))
        yield Fronts({"server": server, "router": routed}, seen, pipeline)
        runner.run(routing.aclose())


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    try:
        async with asyncio.timeout(PATIENCE):
            yield reader, writer
    finally:
        writer.transport.abort()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
    writer.write(PLAIN % len(HELLO) + HELLO)
    return await read_answer(reader)


async def judge(
    answer: Answer, expected: Expected, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    assert answer.status == expected.status, answer
    if answer.status >= 400:
        error = json.loads(answer.body)["error"]
        assert expected.code in (None, error["code"]), error
    if answer.status == 101:
        assert CLOSES.search(await reader.read())
    elif expected.closes:
        assert await reader.read() == b""
    else:
        writer.write(MODELS)
        assert json.loads((await read_answer(reader)).body)["data"][0]["id"] == "scripted"


@pytest.mark.parametrize("front", ["server", "router"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_an_attack_is_answered_and_others_are_served(file: Path, front: str, fronts: Fronts) -> None:
    sent, expected = read(file, front)
    url, pipeline = fronts.urls[front], fronts.pipeline
    fronts.seen.paths.clear()
    pipeline.reset()
    async with connected(url) as (reader, writer):
        head, ends, rest = sent.partition(b"\r\n\r\n") if expected.status == 101 else (sent, b"", b"")
        writer.write(head + ends)
        if expected.status is None:
            assert await reader.read() == b""
        else:
            answer = await read_answer(reader)
            writer.write(rest)
            await judge(answer, expected, reader, writer)
    if expected.status != 200:
        assert pipeline.requests == []
    assert "/smuggled" not in fronts.seen.paths
    if expected.is_unseen:
        assert fronts.seen.paths == []
    async with connected(url) as (reader, writer):
        answer = await ask(reader, writer)
    assert (answer.status, json.loads(answer.body)["choices"][0]["text"]) == (200, "Hello.")


def test_there_are_attacks() -> None:
    assert len(FILES) > 40
