"""A caller over WebRTC, as a browser is one: a microphone that plays what it is given, and ears."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import av
import httpx
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from waiting import PATIENCE, until

RATE = 48_000
FRAME = RATE // 50
# Opus makes silence of silence, but for some noise.
LOUD = 500


class Microphone(MediaStreamTrack):
    """Silence in real time, and what was said into it."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._said = np.zeros(0, np.int16)
        self.sent = 0
        self._start: float | None = None

    def say(self, samples: np.ndarray) -> None:
        """int16 samples of shape (n,), 48 kHz."""
        self._said = np.concatenate([self._said, samples])

    async def recv(self) -> av.AudioFrame:
        self._start = self._start or time.monotonic()
        await asyncio.sleep(max(0.0, self._start + self.sent * FRAME / RATE - time.monotonic()))
        piece, self._said = self._said[:FRAME], self._said[FRAME:]
        samples = np.pad(piece, (0, FRAME - len(piece)))
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), self.sent * FRAME
        self.sent += 1
        return frame


class Caller:
    """
    Attributes:
        events: Every event of the server's, with the moment at which it came.
        heard: For each 20 ms that were heard, the moment and the loudest sample.
    """

    def __init__(self) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel("oai-events")
        self.microphone = Microphone()
        self.connection.addTrack(self.microphone)
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.heard: list[tuple[float, int]] = []
        self.sound: list[np.ndarray] = []
        self._changed = asyncio.Event()
        self._open = asyncio.Event()
        self._hearing: asyncio.Task[None] | None = None
        self.channel.on("message", self._told)
        self.channel.on("open", self._open.set)
        self.connection.on("track", self._hear)

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return self.connection.localDescription.sdp

    async def accept(self, answer: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        async with asyncio.timeout(PATIENCE):
            await self._open.wait()

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def wait(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The event of this kind that came as the ``count``-th."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.of(kind)) < count:
                self._changed.clear()
                await self._changed.wait()
        return found[count - 1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for _, event in self.events if event["type"] == kind]

    def moment(self, kind: str) -> float:
        """When the last event of this kind came."""
        return [moment for moment, event in self.events if event["type"] == kind][-1]

    def loud(self) -> list[float]:
        """The moments at which something was heard."""
        return [moment for moment, peak in self.heard if peak > LOUD]

    async def hears(self, frames: int) -> None:
        """Waits until so many frames of sound were heard."""
        await until(lambda: len(self.loud()) >= frames)

    async def hears_silence(self) -> None:
        """Waits until the last five frames were silent."""
        await until(lambda: len(self.heard) > 5 and all(peak <= LOUD for _, peak in self.heard[-5:]))

    async def spoke(self, seconds: float) -> None:
        """Waits until the microphone has sent so much."""
        await until(lambda: self.microphone.sent * FRAME >= seconds * RATE)

    @staticmethod
    def samples_of(audio: str) -> np.ndarray:
        """int16 of an event's sound."""
        return np.frombuffer(base64.b64decode(audio), "<i2")

    async def close(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        await self.connection.close()

    def _told(self, message: str) -> None:
        self.events.append((time.monotonic(), json.loads(message)))
        self._changed.set()

    def _hear(self, track: MediaStreamTrack) -> None:
        async def listen() -> None:
            while True:
                try:
                    frame = await track.recv()
                except MediaStreamError:
                    return
                assert isinstance(frame, av.AudioFrame)
                samples = frame.to_ndarray().reshape(-1, 2)[:, 0]
                self.heard.append((time.monotonic(), int(np.abs(samples.astype(np.int32)).max())))
                self.sound.append(samples)

        self._hearing = asyncio.ensure_future(listen())


@asynccontextmanager
async def call(
    http: httpx.AsyncClient, session: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Caller, httpx.Response]]:
    """A caller that is connected, and the answer to its offer."""
    caller = Caller()
    try:
        offer = await caller.offer()
        if session is None:
            answer = await http.post(
                "/v1/realtime/calls", content=offer, headers={"content-type": "application/sdp"}
            )
        else:
            form = {"sdp": (None, offer), "session": (None, json.dumps(session))}
            answer = await http.post("/v1/realtime/calls", files=form)
        assert answer.status_code == 201, answer.text
        await caller.accept(answer.text)
        yield caller, answer
    finally:
        await caller.close()
