"""``/v1/realtime/calls``: a realtime session over WebRTC, as OpenAI has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic_core import from_json
from starlette.datastructures import FormData

from sglang_omni.packages import install_line
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.realtime.config_checks import default_config
from sglang_omni.serve.realtime.events import new_id
from sglang_omni.serve.realtime.playback import CallPlayback
from sglang_omni.serve.realtime.session import Session
from sglang_omni.serve.routes.documented import media
from sglang_omni.serve.routes.forms import read_form
from sglang_omni.serve.state import AppState

if TYPE_CHECKING:
    from sglang_omni.serve.realtime.webrtc import Call, Peer

_SDP = "application/sdp"
_MAX_SDP_BYTES = 64 * 2**10


class _Calls:
    """The calls of one server, by their ids, each with its owner."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str | None, Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, server: AppState, owner: str | None, peer: Peer, session: Session) -> str:
        """Has a call go on until it ends; returns its id."""
        from sglang_omni.serve.realtime.webrtc import Call

        call_id = new_id("rtc")
        call = Call(peer, session)
        self._calls[call_id] = (owner, call)

        async def run() -> None:
            # A server that shuts down lets calls end as it does WebSockets.
            server.websockets.begins()
            try:
                with server.realtime.entered():
                    await call.run()
            finally:
                server.websockets.ends()
                del self._calls[call_id]

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return call_id

    def find(self, call_id: str, owner: str | None) -> Call:
        """
        Raises:
            RequestError: 404: this owner has no such call here.
        """
        whose, call = self._calls.get(call_id, (None, None))
        if call is None or whose != owner:
            raise RequestError(
                f"no call {call_id[:100]!r} goes on here", param="call_id", code="call_not_found", status=404
            )
        return call


def realtime_call_routes(server: AppState) -> APIRouter:
    router = APIRouter()
    calls = _Calls()

    @router.post(
        "/v1/realtime/calls",
        response_model=None,
        response_class=Response,
        status_code=201,
        responses=media(_SDP, status=201),
    )
    async def create_call(request: Request) -> Response:
        """Begin a call: takes an SDP offer, alone or in a form with the session's configuration."""
        make_peer = _peer_class()
        offer, fields = await _read_offer(request)
        model = fields.pop("model", None) or request.query_params.get("model")
        owner = owner_of(request)
        server.realtime.check_room()
        # The first one loads the detector of turns.
        await asyncio.to_thread(default_config, server, server.check_model(model), "realtime")
        playback = CallPlayback(lambda kind, **told: session.outbox.put(kind, **told))
        session = Session(server, model=server.check_model(model), owner=owner, listener=playback)
        await session.configure(fields)
        peer = make_peer(playback, server.ice_servers)
        try:
            answer = await peer.answer(offer)
        except BaseException:
            await peer.close()
            raise
        call_id = calls.begin(server, owner, peer, session)
        headers = {"location": f"/v1/realtime/calls/{call_id}"}
        return Response(answer, 201, headers=headers, media_type=_SDP)

    @router.post("/v1/realtime/calls/{call_id}/hangup", response_class=Response)
    async def hang_up(call_id: str, request: Request) -> Response:
        """End a call."""
        await calls.find(call_id, owner_of(request)).hang_up()
        return Response()

    return router


def _peer_class() -> type[Peer]:
    """
    Raises:
        RequestError: 501: aiortc is not installed; the text has the install line.
    """
    try:
        from sglang_omni.serve.realtime.webrtc import Peer
    except ImportError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in ("aiortc", "av"):
            raise
        raise RequestError(
            f"calls over WebRTC need aiortc, which this server lacks: {install_line('realtime')}; "
            "/v1/realtime takes WebSockets without it",
            code="webrtc_not_installed",
            status=501,
        ) from exc
    return Peer


async def _read_offer(request: Request) -> tuple[str, dict[str, Any]]:
    """The SDP offer, and the session's fields.

    Raises:
        RequestError: The body is neither an offer nor a form with one.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _SDP:
        body = await request.body()
        if len(body) > _MAX_SDP_BYTES:
            raise RequestError(
                f"sdp: over {_MAX_SDP_BYTES} bytes", param="sdp", code="request_too_large", status=413
            )
        return body.decode(errors="replace"), {}
    if kind != "multipart/form-data":
        raise RequestError(
            f"the body must be an SDP offer ({_SDP}), or multipart/form-data with one as 'sdp'",
            param="sdp",
            code="unsupported_media_type",
            status=415,
        )
    form = await read_form(request)
    try:
        offer = await _text(form, "sdp")
        if offer is None:
            raise RequestError("sdp: the offer is missing", param="sdp", code="missing_required_parameter")
        session = await _text(form, "session")
    finally:
        await form.close()
    if session is None:
        return offer, {}
    try:
        fields = from_json(session)
    except ValueError as exc:
        raise RequestError(f"session: not valid JSON: {exc}", param="session", code="invalid_json") from exc
    if not isinstance(fields, dict):
        raise RequestError("session: must be a JSON object", param="session", code="invalid_type")
    return offer, fields


async def _text(form: FormData, name: str) -> str | None:
    """A field's text, which clients also send as a file."""
    value = form.get(name)
    if value is None or isinstance(value, str):
        return value
    return (await value.read()).decode(errors="replace")
