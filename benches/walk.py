"""``make walk``: how many files of the package a request, a payload and a chunk of sound go through.

A pipeline of two stages in two processes answers streamed chats with text and sound, one after the other, and
every call of a Python function of the package is recorded. A walk's files are those that all repetitions
enter; a change of file is a call in another file than the one before, in one process.

python benches/walk.py [--files]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import walk_stages
from walk_stages import Call

from sglang_omni import Client
from sglang_omni.config import PipelineConfig
from sglang_omni.pipeline.mp_runner import MultiProcessPipelineRunner
from sglang_omni.serve import create_app

REPEATS = 5
QUEUES = "scheduling/queues.py"
BODY = {
    "model": "walk",
    "messages": [{"role": "user", "content": "Is it far?"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "pcm16"},
    "stream": True,
}


class Walk(NamedTuple):
    """
    Attributes:
        name: From where to where.
        most: How many files it may enter. This goes down, not up.
        parts: Its calls, by process and in order; one dict for each repetition.
    """

    name: str
    most: int
    parts: list[dict[str, list[Call]]]

    def files(self) -> list[str]:
        """The files that every repetition enters, in the order of the first one."""
        entered = [{call.file for calls in part.values() for call in calls} for part in self.parts]
        first = [call.file for calls in self.parts[0].values() for call in calls]
        return [file for file in dict.fromkeys(first) if all(file in each for each in entered)]

    def changes(self) -> int:
        """The median of the changes of file."""
        return round(
            statistics.median(
                sum(
                    before.file != after.file
                    for calls in part.values()
                    for before, after in itertools.pairwise(calls)
                )
                for part in self.parts
            )
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    args = parser.parse_args(argv)
    walks = asyncio.run(recorded())
    print("| walk | files | changes of file | at most |\n| --- | --- | --- | --- |")
    for walk in walks:
        print(f"| {walk.name} | {len(walk.files())} | {walk.changes()} | {walk.most} |")
    if args.files:
        for walk in walks:
            print(f"\n{walk.name}: {' > '.join(file.removesuffix('.py') for file in walk.files())}")
    return 1 if any(len(walk.files()) > walk.most for walk in walks) else 0


async def recorded() -> list[Walk]:
    """The three walks."""
    with tempfile.TemporaryDirectory() as folder:
        here = str(Path(__file__).parent)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        runner = MultiProcessPipelineRunner(config(folder))
        await runner.start()
        try:
            app = create_app(Client(runner.coordinator))
            walk_stages.record()
            sent = [await chat(app) for _ in range(REPEATS + 1)]
            # A stage has written its calls up to its last request's begin.
            await chat(app)
        finally:
            sys.setprofile(None)
            await runner.stop()
        stages = {
            stage: [Call(*call) for call in pickle.loads((Path(folder) / f"{stage}.pickle").read_bytes())]
            for stage in ("read", "answer")
        }
    # The first request opens connections and files.
    return walks(sent[1:], {"server": list(walk_stages.calls), **stages})


def walks(sent: list[tuple[int, int]], calls: dict[str, list[Call]]) -> list[Walk]:
    """
    Args:
        sent: When each request was sent, and when its last chunk of sound came.
        calls: By process.
    """
    found = [
        Walk("a chat request, from the route to the first scheduler", 41, []),
        Walk("a payload, from one scheduler to the next", 14, []),
        Walk("a chunk of sound, from the vocoder to the client", 28, []),
    ]
    for began, heard in sent:
        accepted = first(calls["read"], began, "Inbox.put")
        emitted = first(calls["read"], accepted, "Outbox.put")
        taken = first(calls["answer"], emitted, "Inbox.put")
        chunk = last(calls["answer"], heard, "Outbox.put")
        for walk, start, end, processes in (
            (found[0], began, accepted, ("server", "read")),
            (found[1], emitted, taken, ("read", "answer")),
            (found[2], chunk, heard, ("answer", "server")),
        ):
            walk.parts.append({name: between(calls[name], start, end) for name in processes})
    return found


def between(calls: list[Call], start: int, end: int) -> list[Call]:
    """A process's calls in this time, without what a scheduler goes on with once it has emitted."""
    emitters = {call.thread for call in calls if call.at == start and is_put(call, "Outbox.put")}
    return [
        call
        for call in calls
        if start <= call.at <= end and (call.at == start or call.thread not in emitters)
    ]


def first(calls: list[Call], after: int, function: str) -> int:
    return next(call.at for call in calls if call.at >= after and is_put(call, function))


def last(calls: list[Call], before: int, function: str) -> int:
    return next(call.at for call in reversed(calls) if call.at <= before and is_put(call, function))


def is_put(call: Call, function: str) -> bool:
    return (call.file, call.function) == (QUEUES, function)


async def chat(app: Callable[..., Any]) -> tuple[int, int]:
    """Sends a streamed chat. Returns when it was sent, and when its last chunk of sound was."""
    body = json.dumps(BODY).encode()
    heard = 0
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal body
        if body is None:
            await left.wait()
            return {"type": "http.disconnect"}
        whole, body = body, None  # type: ignore[assignment]
        return {"type": "http.request", "body": whole, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal heard
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise SystemExit(f"status {message['status']}")
        data = message.get("body", b"")
        if b'"audio"' in data and b'"data":' in data:
            heard = time.monotonic_ns()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    began = time.monotonic_ns()
    await app(scope, receive, send)
    left.set()
    assert heard, "no sound came"
    # What the request leaves behind, reports for example, is not the next one's.
    await asyncio.sleep(walk_stages.PAUSE_S)
    return began, heard


def config(folder: str) -> PipelineConfig:
    return PipelineConfig.from_dict(
        {
            "name": "walk",
            "model_path": "none",
            "serves": {
                "tasks": ["chat"],
                "input_modalities": ["text"],
                "output_modalities": ["text", "audio"],
            },
            "stages": [
                {
                    "name": stage,
                    "process": stage,
                    "factory": f"walk_stages.load_{stage}",
                    "factory_args": {"folder": folder},
                    **more,
                }
                for stage, more in (("read", {"next": "answer"}), ("answer", {"terminal": True}))
            ],
        }
    )


if __name__ == "__main__":
    sys.exit(main())
