"""Conversations of spoken turns: ``/v1/realtime``.

A client speaks as fast as people do, in pieces of 40 ms, ends the turn itself and listens to the answer. The
clock of a turn starts when its last piece has been sent.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import numpy as np
from numpy.typing import NDArray

from sglang_omni.bench.clips import RATE, Clips
from sglang_omni.bench.outcome import CallFailed, Outcome
from sglang_omni.bench.traffic import Asking

_PIECE_S = 0.04
_PIECE = round(_PIECE_S * RATE)
# Names of the protocol, and those of its earlier form.
_SOUND = ("response.output_audio.delta", "response.audio.delta")
_TEXT = (
    "response.output_audio_transcript.delta",
    "response.audio_transcript.delta",
    "response.output_text.delta",
    "response.text.delta",
)


class RealtimeTraffic(NamedTuple):
    """
    Attributes:
        turns: Of each session.
        output_len: The most tokens of an answer; None leaves it to the server.
    """

    asking: Asking
    clips: Clips
    turns: int
    output_len: int | None

    async def ask(self, index: int, outcomes: list[Outcome]) -> None:
        async with self.asking.target.session(f"/v1/realtime?model={quote(self.asking.model)}") as socket:
            async with asyncio.timeout(self.asking.target.timeout_s):
                await _event(socket, "session.created")
                await _send(socket, "session.update", session=self._settings())
                await _event(socket, "session.updated")
            for turn in range(self.turns):
                if turn:
                    outcomes.append(Outcome(time.perf_counter()))
                async with asyncio.timeout(self.asking.target.timeout_s):
                    await self._turn(socket, self.clips.unheard(index * self.turns + turn), outcomes[-1])

    def _settings(self) -> dict[str, Any]:
        audio: dict[str, Any] = {"input": {"turn_detection": None}}
        if self.asking.voice:
            audio["output"] = {"voice": self.asking.voice}
        settings = {"type": "realtime", "audio": audio, **self.asking.more}
        return settings | ({"max_output_tokens": self.output_len} if self.output_len else {})

    async def _turn(
        self, socket: aiohttp.ClientWebSocketResponse, clip: NDArray[np.int16], outcome: Outcome
    ) -> None:
        await _speak(socket, clip)
        await _send(socket, "input_audio_buffer.commit")
        outcome.began = time.perf_counter()
        await _send(socket, "response.create")
        event: dict[str, Any] = {}
        while event.get("type") != "response.done":
            event = await _event(socket)
            now = time.perf_counter()
            if event["type"] in _SOUND:
                outcome.hears(now, len(base64.b64decode(event["delta"])) / 2 / RATE)
            elif event["type"] in _TEXT:
                outcome.texts.append(now)
        outcome.ended = now
        response = event["response"]
        outcome.count_pieces()
        outcome.take_usage(response.get("usage") or {})
        # An answer may be as long as it was allowed to be.
        if response["status"] not in ("completed", "incomplete"):
            raise CallFailed(f"response {response['status']}", json.dumps(response.get("status_details")))


async def _speak(socket: aiohttp.ClientWebSocketResponse, clip: NDArray[np.int16]) -> None:
    began = time.perf_counter()
    for index, start in enumerate(range(0, len(clip), _PIECE)):
        await asyncio.sleep(began + (index + 1) * _PIECE_S - time.perf_counter())
        audio = base64.b64encode(clip[start : start + _PIECE].tobytes()).decode()
        await _send(socket, "input_audio_buffer.append", audio=audio)


async def _send(socket: aiohttp.ClientWebSocketResponse, kind: str, **fields: Any) -> None:
    await socket.send_str(json.dumps({"type": kind, **fields}))


async def _event(socket: aiohttp.ClientWebSocketResponse, kind: str | None = None) -> dict[str, Any]:
    """The next event, or the next one of a kind."""
    while True:
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise CallFailed("closed session", f"the server closed it ({socket.close_code}): {message.extra}")
        event: dict[str, Any] = json.loads(message.data)
        if event["type"] == "error":
            raise CallFailed("error event", str(event["error"].get("message")))
        if kind in (None, event["type"]):
            return event
