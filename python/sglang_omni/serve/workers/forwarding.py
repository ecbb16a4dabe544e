"""ASGI over the link: requests that an API worker does not serve itself are served in the main process.

The connection stays the worker's. What the application receives and sends crosses the link, so that a request
of any kind, WebSockets included, is answered as if there were no worker.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.serve.workers.failures import OtherFailure
from sglang_omni.serve.workers.link import WorkerLink

logger = logging.getLogger(__name__)

# Of a WebSocket whose connection was lost.
_ABNORMAL_CLOSURE = 1006


@dataclass(eq=False)
class _Exchange:
    """One request that is answered elsewhere.

    Attributes:
        over: Done once the connection takes no more.
        sent: What the application sends, in order, with who waits until it is sent; None at the end.
    """

    receive: Receive
    over: asyncio.Future[None]
    sent: asyncio.Queue[tuple[Message, asyncio.Future[None] | None] | None] = field(
        default_factory=asyncio.Queue
    )
    has_failed: bool = False


class Forwarding:
    """The application of an API worker.

    Args:
        own: Serves the requests that POST to ``paths``.
        paths: Without parameters.
    """

    def __init__(self, own: ASGIApp, paths: Collection[str], link: WorkerLink) -> None:
        self._own = own
        self._paths = frozenset(paths)
        self._link = link
        self._numbers = itertools.count()
        self._exchanges: dict[int, _Exchange] = {}
        link.serve(
            {
                "receive": self._receive,
                "deliver": self._deliver,
                "send": self._put,
                "done": self._done,
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_own = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths
        if is_own or scope["type"] == "lifespan":
            await self._own(scope, receive, send)
            return
        number = next(self._numbers)
        over = asyncio.get_running_loop().create_future()
        exchange = self._exchanges[number] = _Exchange(receive, over)
        self._link.post("forward", number, scope)
        try:
            while (next_one := await exchange.sent.get()) is not None:
                message, waiter = next_one
                await _send(message, waiter, send)
        finally:
            del self._exchanges[number]
            over.set_result(None)
            self._link.post("forwarded", number)
        if exchange.has_failed:
            raise OtherFailure(f"the main process could not serve {scope['path']}; its log says why")

    async def _receive(self, number: int) -> Message:
        if (exchange := self._exchanges.get(number)) is None:
            raise ConnectionError("the request is over")
        return dict(await exchange.receive())

    async def _deliver(self, number: int, message: Message) -> None:
        if (exchange := self._exchanges.get(number)) is not None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            exchange.sent.put_nowait((message, waiter))
            await asyncio.wait({waiter, exchange.over}, return_when=asyncio.FIRST_COMPLETED)
            if waiter.done():
                return waiter.result()
        raise ConnectionError("the request is over")

    def _put(self, number: int, message: Message) -> None:
        if (exchange := self._exchanges.get(number)) is not None:
            exchange.sent.put_nowait((message, None))

    def _done(self, number: int, has_failed: bool) -> None:
        if (exchange := self._exchanges.get(number)) is not None:
            exchange.has_failed = has_failed
            exchange.sent.put_nowait(None)


async def _send(message: Message, waiter: asyncio.Future[None] | None, send: Send) -> None:
    """Sends a message to the client; a failure is that of the sender, if one waits, who goes on or ends."""
    try:
        await send(message)
    except Exception as exc:
        if waiter is None:
            raise
        waiter.set_exception(exc)
    else:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class ForwardedRequests:
    """The requests of one API worker that the main process's application serves."""

    def __init__(self, app: ASGIApp, link: WorkerLink) -> None:
        self._app = app
        self._link = link
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Those whose connections the worker is done with.
        self._left: set[int] = set()
        link.serve({"forward": self._forward, "forwarded": self._forwarded})

    def _forward(self, number: int, scope: dict[str, Any]) -> None:
        task = self._tasks[number] = asyncio.ensure_future(self._run(number, scope))
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _forwarded(self, number: int) -> None:
        if number in self._tasks:
            self._left.add(number)

    async def _run(self, number: int, scope: Scope) -> None:
        is_websocket = scope["type"] == "websocket"

        async def receive() -> Message:
            try:
                received: Message = await self._link.call("receive", number)
            except ConnectionError:
                gone: Message = {"type": f"{scope['type']}.disconnect"}
                return {**gone, "code": _ABNORMAL_CLOSURE} if is_websocket else gone
            return received

        async def send(message: Message) -> None:
            if is_websocket:
                # The next one is made once the client has taken this one.
                await self._link.call("deliver", number, message)
            elif number not in self._left:
                self._link.post("send", number, message)
                await self._link.taken()

        has_failed = False
        try:
            await self._app(scope, receive, send)
        except Exception:
            has_failed = True
            logger.exception("%s could not be served", scope["path"])
        finally:
            self._left.discard(number)
            self._link.post("done", number, has_failed)
