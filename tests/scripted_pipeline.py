"""The API over real sockets, in front of a pipeline whose answers and faults a test scripts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from starlette.types import ASGIApp
from waiting import PATIENCE

from sglang_omni.client import Client
from sglang_omni.proto import CompleteMessage, DuplicateRequest, OmniRequest, StageTime, StreamMessage
from sglang_omni.proto.tasks import later
from sglang_omni.serve import create_app
from sglang_omni.serve.launch.web_server import WebServer
from sglang_omni.serve.state import Capabilities
from sglang_omni.supervision.ports import bind

RATE = 24_000
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


class ScriptedPipeline:
    """A coordinator whose answers and faults a test sets, and that keeps the requests it got."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.requests: list[tuple[str, OmniRequest]] = []
        self.aborted: list[str] = []
        self.words = ["Hel", "lo", "."]
        self.samples = np.linspace(-1, 1, 480, dtype=np.float32)
        self.error: Exception | None = None
        self.error_after: int | None = None
        self.hangs_after: int | None = None
        self.running: dict[str, _Running] = {}
        self.heard: str | None = None
        # Seconds before each piece of sound, which is a hundred and fiftieth of a second long.
        self.pause = 0.0
        self.speech_usage: dict[str, int] | None = None
        self.up = True
        self.sends_tokens = False
        self.words_of_segments: list[list[dict[str, Any]]] = [[], []]
        # Of each third of the sound, timed from where that begins.
        self.spoken_words: list[list[dict[str, Any]]] = [[], [], []]
        # Chunks in the place of the words, and further fields of the result.
        self.parts: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}

    def was_aborted(self, request_id: str) -> bool:
        """True if it is, within the time a failing test takes: who left is noticed a moment later."""
        deadline = time.monotonic() + PATIENCE
        while request_id not in self.aborted and time.monotonic() < deadline:
            time.sleep(0.005)
        return request_id in self.aborted

    @property
    def last(self) -> OmniRequest:
        return self.requests[-1][1]

    async def submit(self, request_id: str, request: OmniRequest) -> Any:
        with self._during(request_id, request):
            await self._fault(0)
            return self._result(request)

    async def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[Any]:
        with self._during(request_id, request):
            spoken = "audio" in request.metadata["output_modalities"]
            texts = [] if request.metadata["task"] == "speech" or self.parts else self.words
            for index, part in enumerate(self.parts):
                await self._fault(index)
                yield StreamMessage(request_id, "thinker", {"modality": "text", **part})
            if self.heard is not None:
                yield StreamMessage(
                    request_id, "transcribe", {"modality": "text", "input_transcript": self.heard}
                )
            for index, word in enumerate(texts):
                await self._fault(index)
                chunk = {"modality": "text", "text": word}
                if self.sends_tokens:
                    chunk["token_ids"] = [index + 1]
                yield StreamMessage(request_id, "thinker", chunk)
            for index, part in enumerate(np.split(self.samples, 3) if spoken else ()):
                await self._fault(len(texts) + index)
                if self.pause:
                    await asyncio.sleep(self.pause)
                chunk = {"modality": "audio", "audio_data": part, "sample_rate": RATE}
                chunk["words"] = self.spoken_words[index]
                yield StreamMessage(request_id, "speak", chunk, modality="audio")
            yield CompleteMessage(request_id, "decode", True, self._result(request))

    async def abort(self, request_id: str) -> bool:
        self._ended(request_id)
        running = self.running.get(request_id)
        if running is not None and running.waiter is not None:
            running.waiter.cancel()
        return running is not None

    def health(self) -> dict[str, Any]:
        return {"running": self.up}

    def get_load(self) -> dict[str, int]:
        return {"pending": 0, "running": len(self.running), "completed": 5, "failed": 0, "aborted": 0}

    def stage_load(self) -> dict[str, int]:
        return {"thinker": len(self.running)}

    def timings(self, request_id: str) -> dict[str, StageTime]:
        return {"thinker": {"work": 0.25, "wait": 0.5}}

    @contextmanager
    def _during(self, request_id: str, request: OmniRequest) -> Iterator[None]:
        if request_id in self.running:
            raise DuplicateRequest(f"request {request_id!r} already exists")
        self.requests.append((request_id, request))
        self.running[request_id] = _Running()
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self._ended(request_id)
            raise
        finally:
            del self.running[request_id]

    def _ended(self, request_id: str) -> None:
        if request_id not in self.aborted:
            self.aborted.append(request_id)

    async def _fault(self, index: int) -> None:
        if self.hangs_after == index:
            running = next(reversed(self.running.values()))
            running.waiter = asyncio.get_running_loop().create_future()
            await running.waiter
        if self.error is not None and self.error_after in (None, index):
            raise self.error

    def _result(self, request: OmniRequest) -> Any:
        text = {
            "modality": "text",
            "text": "".join(self.words),
            "finish_reason": "length",
            "token_ids": [1, 2, 3],
            "usage": USAGE,
            "input_transcript": self.heard,
            "language": "en",
            "duration": 1.5,
            "segments": [
                {"start": 0.0, "end": 0.5, "text": "Hello", "words": self.words_of_segments[0]},
                {"start": 0.5, "end": 3661.25, "text": " there", "words": self.words_of_segments[1]},
            ],
        }
        text |= self.more
        audio = {"modality": "audio", "audio_data": self.samples, "sample_rate": RATE, "text": text["text"]}
        third = len(self.samples) / 3 / RATE
        audio["words"] = [
            each for index, words in enumerate(self.spoken_words) for each in later(words, index * third)
        ]
        if request.metadata["task"] == "speech":
            return audio | {"usage": self.speech_usage}
        if "audio" in request.metadata["output_modalities"]:
            return {"decode": text, "speak": audio}
        return text


class _Running:
    waiter: asyncio.Future[None] | None = None


CAPABILITIES = Capabilities(
    tasks=frozenset({"chat", "completion", "speech", "transcription"}),
    input_modalities=frozenset({"text", "audio"}),
    output_modalities=frozenset({"text", "audio"}),
    voices=frozenset({"default"}),
    stages=frozenset({"thinker", "speak"}),
)


@contextmanager
def serving(
    scripted: ScriptedPipeline, capabilities: Capabilities, name: str, **limits: int
) -> Iterator[str]:
    """The app on a port of its own; its base URL."""
    limits = {"max_body_size": 1 << 20, **limits}
    with listening(create_app(Client(scripted), model_name=name, capabilities=capabilities, **limits)) as url:
        yield url


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """A web server in a thread; its base URL."""
    with bind("127.0.0.1") as listener:
        listener.listen()
        server = WebServer(app)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
