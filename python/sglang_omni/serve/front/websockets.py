"""WebSockets among the routes: how they are answered, counted, and refused while the server shuts down."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.proto import Unavailable
from sglang_omni.serve.front.admission import Admission
from sglang_omni.serve.front.errors import error_response
from sglang_omni.serve.metrics import Metrics

SWITCHING_PROTOCOLS = 101
# Of a close frame: the server shuts down, an error of the server's, and a client that broke a rule.
GOING_AWAY, INTERNAL_ERROR, POLICY_VIOLATION = 1001, 1011, 1008


def chosen_subprotocol(scope: Scope, known: str) -> str | None:
    """``known`` if the client offers it: a browser that offers some needs the server to choose one."""
    return known if known in scope["subprotocols"] else None


class OpenWebSockets:
    """The WebSockets of one server that are open."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return self._count

    def begins(self) -> None:
        self._count += 1
        self._none.clear()

    def ends(self) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def ended(self) -> None:
        """Return once none is open."""
        await self._none.wait()


class WebSockets:
    """Follows the WebSockets that are open, and refuses those that no route takes or that come too late.

    A WebSocket holds no place of the admission: each request that is made through it takes one for itself.
    A route that raises before it accepts refuses with an HTTP error, as any other route.
    """

    def __init__(
        self, app: ASGIApp, *, admission: Admission, metrics: Metrics, are_open: OpenWebSockets
    ) -> None:
        self.app = app
        self.admission = admission
        self.metrics = metrics
        self.are_open = are_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.admission.closed:
            await error_response(Unavailable(self.admission.closed))(scope, receive, send)
            return
        is_open = False

        async def watched(message: Message) -> None:
            nonlocal is_open
            if message["type"] == "websocket.accept":
                is_open = True
                self.are_open.begins()
                self.metrics.open_websockets.inc()
            elif message["type"] == "websocket.close" and not is_open:
                unknown = HTTPException(404, f"no such route: WebSocket {scope['path']}")
                await error_response(unknown)(scope, receive, send)
                return
            elif is_open and message["type"].startswith("websocket.http.response."):
                # A route failed after it had accepted; the failure has been logged.
                if message["type"] == "websocket.http.response.start":
                    await send({"type": "websocket.close", "code": INTERNAL_ERROR})
                return
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            if is_open:
                self.are_open.ends()
                self.metrics.open_websockets.dec()
