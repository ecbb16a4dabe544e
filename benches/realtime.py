"""Realtime sessions of the spoken chat: how soon they answer, how soon they are silent, and many at once.

    python benches/realtime.py                                  # starts a server, about four minutes
    python benches/realtime.py --url http://127.0.0.1:8000      # asks one that runs
    python benches/realtime.py --sessions 8 --turns 5

The clips that are sent are the server's own voice. Each has a noise of its own, far below hearing, so that no
cache knows its transcript. Ways that are compared take turns.

- answer: from the end of speech to the first sound, by `/v1/chat/completions` (the whole clip in one request)
  and in a session (the clip is there already, then it is committed). With a detector of turns, speech ends
  with its last sample, and the answer waits for `silence_duration_ms` first.
- interruption: from the first sample of a speaker who interrupts to `speech_started`, and from there to the
  last sound of the answer.
- crowd: sessions that all speak at once, and their turns that failed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from measure import progress
from numpy.typing import NDArray
from router_ways import free_port
from websockets.asyncio.client import ClientConnection, connect

RATE = 24_000
MODEL = "speech-chat"
QUESTIONS = ("What is the capital of France?", "Name one famous building there.", "What colour is the sea?")
LONG = "Tell me a long story about the sea."
SILENCE_MS = 500
# Of an answer, but for one that is interrupted.
ANSWER_TOKENS = 24
# Of what a client sends at a time.
PIECE_S = 0.04
CASES = ("answers", "interruptions", "crowd")

Samples = NDArray[np.int16]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Server:
    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, trust_env=False, timeout=300)
        self._random = np.random.default_rng(0)

    async def say(self, text: str) -> Samples:
        body = {"model": MODEL, "input": text, "voice": "default", "response_format": "wav"}
        answer = await self.http.post("/v1/audio/speech", json=body)
        answer.raise_for_status()
        with wave.open(io.BytesIO(answer.content)) as file:
            return np.frombuffer(file.readframes(file.getnframes()), np.int16)

    def unheard(self, clip: Samples) -> Samples:
        return clip + self._random.integers(-2, 3, len(clip)).astype(np.int16)

    async def chat(self, clip: Samples) -> float:
        """Seconds from the request to the first sound of a streamed chat."""
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setparams((1, 2, RATE, 0, "NONE", ""))
            out.writeframes(clip.tobytes())
        audio = {"data": base64.b64encode(file.getvalue()).decode(), "format": "wav"}
        content = [{"type": "input_audio", "input_audio": audio}]
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "modalities": ["text", "audio"],
            "audio": {"voice": "default", "format": "pcm16"},
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
            "stream": True,
        }
        began = time.perf_counter()
        first = 0.0
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not first and '"sample_rate"' in line:
                    first = time.perf_counter() - began
        return first

    @asynccontextmanager
    async def session(
        self, turns: dict[str, Any] | None, max_output_tokens: int | str = ANSWER_TOKENS
    ) -> AsyncIterator[Session]:
        url = self.url.replace("http://", "ws://") + f"/v1/realtime?model={MODEL}"
        async with connect(url, proxy=None, max_size=None) as socket:
            session = Session(socket)
            await session.until("session.created")
            sound = {"input": {"turn_detection": turns}}
            settings = {"type": "realtime", "temperature": 0, "max_output_tokens": max_output_tokens}
            await session.send("session.update", session={**settings, "audio": sound})
            await session.until("session.updated")
            yield session


class Session:
    """One client. ``seen``: when each type of event came last."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.seen: dict[str, float] = {}

    async def send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, *kinds: str) -> dict[str, Any]:
        async for text in self._socket:
            event: dict[str, Any] = json.loads(text)
            self.seen[event["type"]] = time.perf_counter()
            if event["type"] == "error":
                raise RuntimeError(event["error"]["message"])
            if event["type"] in kinds:
                return event
        raise RuntimeError("the server closed the session")

    async def append(self, clip: Samples) -> None:
        await self.send("input_audio_buffer.append", audio=base64.b64encode(clip.tobytes()).decode())

    async def speak(self, clip: Samples) -> float:
        """Send a clip as fast as it is spoken, and silence after it; when its last sample was sent."""
        step = round(PIECE_S * RATE)
        began = time.perf_counter()
        ended = 0.0
        for index, start in enumerate(range(0, len(clip) + 2 * RATE, step)):
            await asyncio.sleep(max(0.0, began + index * PIECE_S - time.perf_counter()))
            piece = clip[start : start + step]
            ended = time.perf_counter() if len(piece) else ended
            await self.append(np.pad(piece, (0, step - len(piece))))
        return ended

    async def turn(self, clip: Samples) -> tuple[float, int, int]:
        """Commit a clip: seconds to the first sound of its answer, its prompt's tokens, and those cached."""
        for start in range(0, len(clip), RATE):
            await self.append(clip[start : start + RATE])
        began = time.perf_counter()
        await self.send("input_audio_buffer.commit")
        await self.send("response.create")
        event = await self.until("response.output_audio.delta", "response.done")
        first = time.perf_counter() - began
        if event["type"] != "response.done":
            event = await self.until("response.done")
        response = event["response"]
        # An answer may be as long as it was allowed to be.
        if response["status"] not in ("completed", "incomplete"):
            raise RuntimeError(json.dumps(response["status_details"]))
        usage = response["usage"]
        return first, usage["input_tokens"], usage["input_token_details"]["cached_tokens"]


async def answers(server: Server, rounds: int) -> None:
    clip = await server.say(QUESTIONS[0])
    times: dict[str, list[float]] = {"chat": [], "session": [], "session, with a detector": []}
    vad = {"type": "server_vad", "silence_duration_ms": SILENCE_MS}
    for number in range(rounds + 1):
        chat = await server.chat(server.unheard(clip))
        async with server.session(None) as session:
            committed, _, _ = await session.turn(server.unheard(clip))
        async with server.session(vad) as session:
            speaking = asyncio.create_task(session.speak(server.unheard(clip)))
            await session.until("response.output_audio.delta")
            heard = time.perf_counter()
            await session.until("response.done")
            detected = heard - await speaking
        if number:  # the first round warms up
            for name, seconds in zip(times, (chat, committed, detected), strict=True):
                times[name].append(seconds)
        progress(f"answers {number}/{rounds}")
    print(f"\nEnd of speech to first sound, {len(clip) / RATE:.2f} s of speech, {rounds} rounds:")
    for name, values in times.items():
        print(f"  {name:26} median {1000 * statistics.median(values):5.0f} ms", end="")
        print(f"  from {1000 * min(values):5.0f} to {1000 * max(values):5.0f}")


async def interruptions(server: Server, rounds: int) -> None:
    story, question = await server.say(LONG), await server.say(QUESTIONS[0])
    # The voice begins with a moment of silence, in which no detector can find it.
    question = question[int(np.argmax(np.abs(question) > 1000)) :]
    noticed, silent, between = [], [], []
    for number in range(rounds):
        vad = {"type": "server_vad", "silence_duration_ms": SILENCE_MS}
        async with server.session(vad, "inf") as session:
            first = asyncio.create_task(session.speak(server.unheard(story)))
            await session.until("response.output_audio.delta")
            await first
            began = time.perf_counter()
            second = asyncio.create_task(session.speak(server.unheard(question)))
            await session.until("input_audio_buffer.speech_started")
            started = session.seen["input_audio_buffer.speech_started"]
            done = await session.until("response.done")
            last = session.seen["response.output_audio.delta"]
            if done["response"]["status"] != "cancelled":
                progress("the answer was over before the interruption")
            else:
                noticed.append(started - began)
                silent.append(max(0.0, last - started))
                between.append(session.seen["response.done"] - started)
            await second
        progress(f"interruptions {number + 1}/{rounds}")
    print(f"\nInterruption, {len(noticed)} of {rounds} rounds:")
    for name, values in (
        ("speaker's first sample to speech_started", noticed),
        ("speech_started to the last sound", silent),
        ("speech_started to response.done", between),
    ):
        if values:
            print(f"  {name:42} median {1000 * statistics.median(values):6.1f} ms", end="")
            print(f"  most {1000 * max(values):6.1f}")


async def crowd(server: Server, sessions: int, turns: int) -> None:
    clips = [await server.say(question) for question in QUESTIONS]
    failures: list[str] = []
    times: list[list[float]] = [[] for _ in range(turns)]
    tokens: list[list[tuple[int, int]]] = [[] for _ in range(turns)]

    async def one(number: int) -> None:
        try:
            async with server.session(None) as session:
                for turn in range(turns):
                    clip = server.unheard(clips[(number + turn) % len(clips)])
                    first, prompt, cached = await session.turn(clip)
                    times[turn].append(first)
                    tokens[turn].append((prompt, cached))
        except Exception as exc:  # noqa: BLE001  # it is counted
            failures.append(f"{type(exc).__name__}: {exc}")

    asked = [server.chat(server.unheard(clips[number % len(clips)])) for number in range(sessions)]
    told = await asyncio.gather(*asked, return_exceptions=True)
    chats = [seconds for seconds in told if isinstance(seconds, float)]
    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(sessions)))
    print(f"\n{sessions} sessions at once, {turns} turns each, in {time.perf_counter() - began:.1f} s:")
    print(f"  failures: {len(failures)} {failures[:3] if failures else ''}")
    print(f"  as many chats at once: {_spread(chats)}  failures: {sessions - len(chats)}")
    for turn, values in enumerate(times):
        if values:
            prompt = statistics.median(prompt for prompt, _ in tokens[turn])
            cached = statistics.median(cached for _, cached in tokens[turn])
            tokens_of = f"prompt {prompt:.0f} tokens, {cached:.0f} of them cached"
            print(f"  turn {turn + 1}:               {_spread(values)}   {tokens_of}")


def _spread(seconds: list[float]) -> str:
    shares = (("p50", 0.5), ("p90", 0.9), ("most", 1.0))
    return "first sound after" + "".join(
        f"  {name} {percentile(seconds, share):5.2f} s" for name, share in shares
    )


@contextmanager
def launched() -> Iterator[str]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        command = [sys.executable, "-m", "sglang_omni", "serve", MODEL, "--port", str(port)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--parent-pid", str(os.getpid())], stdout=out, stderr=subprocess.STDOUT
            )
        try:
            while "is served on" not in log.read_text(errors="replace"):
                if process.poll() is not None:
                    sys.exit(log.read_text(errors="replace"))
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


async def measure(options: argparse.Namespace, url: str) -> None:
    server = Server(url)
    if "answers" in options.only:
        await answers(server, options.rounds)
    if "interruptions" in options.only:
        await interruptions(server, options.rounds)
    if "crowd" in options.only:
        await crowd(server, options.sessions, options.turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="of a server that runs")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    options = parser.parse_args()
    if options.url:
        asyncio.run(measure(options, options.url))
        return
    with launched() as url:
        asyncio.run(measure(options, url))


if __name__ == "__main__":
    main()
