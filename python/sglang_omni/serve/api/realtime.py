"""``/v1/realtime``: a spoken or written conversation over a WebSocket, in OpenAI's realtime protocol."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from sglang_omni.serve.api.session import owner_of
from sglang_omni.serve.api.state import AppState
from sglang_omni.serve.api.websockets import GOING_AWAY, POLICY_VIOLATION, chosen_subprotocol
from sglang_omni.serve.realtime.config import default_config
from sglang_omni.serve.realtime.outbox import Outbox
from sglang_omni.serve.realtime.session import MAX_SECONDS_OF_SESSION, Session

# A client that takes nothing for so long is gone.
_STALL_S = 60.0


def realtime_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        """Converse by events."""
        query = websocket.query_params
        kind: Literal["realtime", "transcription"] = (
            "transcription" if query.get("intent") == "transcription" else "realtime"
        )
        model = server.check_model(query.get("model"))
        with server.realtime.entered():
            # The first one loads the detector of turns.
            await asyncio.to_thread(default_config, server, model, kind)
            session = Session(server, model=model, kind=kind, owner=owner_of(websocket))
            await websocket.accept(chosen_subprotocol(websocket.scope, "realtime"))
            try:
                await _converse(websocket, session)
            finally:
                await session.close()

    return router


async def _converse(websocket: WebSocket, session: Session) -> None:
    session.begin()
    receiving = asyncio.create_task(_receive(websocket, session))
    sending = asyncio.create_task(_send(websocket, session.outbox))
    try:
        await asyncio.wait(
            {receiving, sending}, timeout=MAX_SECONDS_OF_SESSION, return_when=asyncio.FIRST_COMPLETED
        )
        if not receiving.done() and not sending.done():
            session.expire()
            await sending
    finally:
        for task in (receiving, sending):
            task.cancel()
        await asyncio.gather(receiving, sending, return_exceptions=True)


async def _receive(websocket: WebSocket, session: Session) -> None:
    """Take events until the client leaves."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        if text is None:
            # An event in a binary frame has the same bytes.
            text = (message.get("bytes") or b"").decode(errors="replace")
        await session.receive(text)


async def _send(websocket: WebSocket, outbox: Outbox) -> None:
    """Send events until the session is over, and then close."""
    try:
        while (event := await outbox.get()) is not None:
            async with asyncio.timeout(_STALL_S):
                await websocket.send_text(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
        if outbox.has_overflowed:
            await websocket.close(POLICY_VIOLATION, "too much was left unread")
        else:
            await websocket.close(GOING_AWAY, "the session is over")
    except (WebSocketDisconnect, TimeoutError):
        return
