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

import aiohttp
import numpy as np
from numpy.typing import NDArray

from sglang_omni.bench.clips import RATE, Clips
from sglang_omni.bench.outcome import CallFailed, Outcome
from sglang_omni.bench.realtime_events import SOUND, TEXT, next_event, send_event, session_path
from sglang_omni.bench.traffic import Asking

_PIECE_S = 0.04
_PIECE = round(_PIECE_S * RATE)


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
        async with self.asking.target.session(session_path(self.asking.model)) as socket:
            async with asyncio.timeout(self.asking.target.timeout_s):
                await next_event(socket, "session.created")
                settings = session_settings(self.asking, self.output_len, {"turn_detection": None})
                await send_event(socket, "session.update", session=settings)
                await next_event(socket, "session.updated")
            for turn in range(self.turns):
                if turn:
                    outcomes.append(Outcome(time.perf_counter()))
                async with asyncio.timeout(self.asking.target.timeout_s):
                    await self._turn(socket, self.clips.clip(index * self.turns + turn).samples, outcomes[-1])

    async def _turn(
        self, socket: aiohttp.ClientWebSocketResponse, clip: NDArray[np.int16], outcome: Outcome
    ) -> None:
        await _speak(socket, clip)
        await send_event(socket, "input_audio_buffer.commit")
        outcome.began = time.perf_counter()
        await send_event(socket, "response.create")
        event: dict[str, Any] = {}
        while event.get("type") != "response.done":
            event = await next_event(socket)
            now = time.perf_counter()
            if event["type"] in SOUND:
                outcome.hears(now, len(base64.b64decode(event["delta"])) / 2 / RATE)
            elif event["type"] in TEXT:
                outcome.texts.append(now)
        outcome.ended = now
        response = event["response"]
        outcome.count_pieces()
        outcome.take_usage(response.get("usage") or {})
        # An answer may be as long as it was allowed to be.
        if response["status"] not in ("completed", "incomplete"):
            raise CallFailed(f"response {response['status']}", json.dumps(response.get("status_details")))


def session_settings(asking: Asking, output_len: int | None, listening: dict[str, Any]) -> dict[str, Any]:
    """What a session is set to.

    Args:
        output_len: The most tokens of an answer; None leaves it to the server.
        listening: The fields of ``audio.input``.
    """
    audio: dict[str, Any] = {"input": listening}
    if asking.voice:
        audio["output"] = {"voice": asking.voice}
    settings = {"type": "realtime", "audio": audio, **asking.more}
    return settings | ({"max_output_tokens": output_len} if output_len else {})


async def _speak(socket: aiohttp.ClientWebSocketResponse, clip: NDArray[np.int16]) -> None:
    began = time.perf_counter()
    for index, start in enumerate(range(0, len(clip), _PIECE)):
        await asyncio.sleep(began + (index + 1) * _PIECE_S - time.perf_counter())
        audio = base64.b64encode(clip[start : start + _PIECE].tobytes()).decode()
        await send_event(socket, "input_audio_buffer.append", audio=audio)
