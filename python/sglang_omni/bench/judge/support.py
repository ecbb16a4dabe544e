"""What a server can do of what a judge asks for, found out before a run."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import aiohttp

from sglang_omni.bench.outcome import CallFailed
from sglang_omni.bench.realtime_events import next_event, send_event, session_path
from sglang_omni.bench.target import Target

SERVER_VAD = {"type": "server_vad"}
# Any recognizer will do; servers with one of their own take OpenAI's name for it.
TRANSCRIPTION = {"model": "whisper-1"}
_ANSWER_S = 30.0


class Support(NamedTuple):
    """
    Attributes:
        no_turns: Why the server finds no turns; None if it does.
        no_transcripts: Why it writes down no turns; None if it does.
    """

    no_turns: str | None
    no_transcripts: str | None


async def find_support(target: Target, model: str) -> Support:
    """Opens a session and asks for what it can do.

    Raises:
        CallFailed: The server opens no session, or does not answer.
    """
    async with target.session(session_path(model)) as socket:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await next_event(socket, "session.created")
                return Support(
                    await _refusal(socket, {"turn_detection": SERVER_VAD}),
                    await _refusal(socket, {"transcription": TRANSCRIPTION}),
                )
        except TimeoutError as exc:
            raise CallFailed("timeout", f"no session.updated within {_ANSWER_S:g} s") from exc


async def _refusal(socket: aiohttp.ClientWebSocketResponse, listening: dict[str, Any]) -> str | None:
    session = {"type": "realtime", "audio": {"input": listening}}
    await send_event(socket, "session.update", session=session)
    event = await next_event(socket, "session.updated", "error")
    return None if event["type"] == "session.updated" else str(event["error"].get("message"))
