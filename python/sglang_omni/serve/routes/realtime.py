"""``/v1/realtime``: a spoken or written conversation over a WebSocket, in OpenAI's realtime protocol."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

from fastapi import APIRouter, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse

from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.front.websockets import GOING_AWAY, POLICY_VIOLATION, chosen_subprotocol
from sglang_omni.serve.models.realtime import ClientSecretRequest
from sglang_omni.serve.realtime.beta import as_now, as_then, wants_beta
from sglang_omni.serve.realtime.client_secrets import ClientSecret
from sglang_omni.serve.realtime.config_checks import default_config, updated
from sglang_omni.serve.realtime.outbox import EventQueue
from sglang_omni.serve.realtime.session import MAX_SECONDS_OF_SESSION, Session
from sglang_omni.serve.state import AppState

Kind = Literal["realtime", "transcription"]

# A client that takes nothing for so long is gone.
_STALL_S = 60.0


def realtime_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/realtime/client_secrets", response_model=None)
    async def client_secrets(body: ClientSecretRequest, request: Request) -> JSONResponse:
        """Give out a key that opens realtime sessions, for a short time."""
        fields = dict(body.session or {})
        kind: Kind = "transcription" if fields.get("type") == "transcription" else "realtime"
        config = await asyncio.to_thread(default_config, server, server.served_name, kind)
        config = await asyncio.to_thread(updated, config, fields, server, owner_of(request))
        secret = server.client_secrets.create(owner_of(request), config, body.expires_after.seconds)
        shown = {"object": "realtime.session", **config.shown()}
        return JSONResponse({"value": secret.value, "expires_at": secret.expires_at, "session": shown})

    @router.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        """Converse by events."""
        query = websocket.query_params
        kind: Kind = "transcription" if query.get("intent") == "transcription" else "realtime"
        model = server.check_model(query.get("model"))
        secret: ClientSecret | None = websocket.scope["state"].get("client_secret")
        with server.realtime.entered():
            # The first one loads the detector of turns.
            config = secret.config if secret else await asyncio.to_thread(default_config, server, model, kind)
            session = Session(server, model=model, config=config, owner=owner_of(websocket))
            await websocket.accept(chosen_subprotocol(websocket.scope, "realtime"))
            try:
                await _converse(websocket, session, is_beta=wants_beta(websocket.scope))
            finally:
                await session.close()

    return router


async def _converse(websocket: WebSocket, session: Session, *, is_beta: bool) -> None:
    session.begin()
    receiving = asyncio.create_task(_receive(websocket, session, is_beta))
    sending = asyncio.create_task(_send(websocket, session.outbox, is_beta))
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


async def _receive(websocket: WebSocket, session: Session, is_beta: bool) -> None:
    """Take events until the client leaves."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        if text is None:
            # An event in a binary frame has the same bytes.
            text = (message.get("bytes") or b"").decode(errors="replace")
        await session.receive(text, as_now if is_beta else None)


async def _send(websocket: WebSocket, outbox: EventQueue, is_beta: bool) -> None:
    """Send events until the session is over, and then close."""
    try:
        while (event := await outbox.get()) is not None:
            shown = as_then(event) if is_beta else event
            if shown is None:
                continue
            async with asyncio.timeout(_STALL_S):
                await websocket.send_text(json.dumps(shown, ensure_ascii=False, separators=(",", ":")))
        if outbox.has_overflowed:
            await websocket.close(POLICY_VIOLATION, "too much was left unread")
        else:
            await websocket.close(GOING_AWAY, "the session is over")
    except (WebSocketDisconnect, TimeoutError):
        return
