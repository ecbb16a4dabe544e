"""Calls: sessions over WebRTC, whose events go through a data channel and whose sound is in audio tracks.

Needs aiortc, which only this module imports.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from fractions import Fraction

import av
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.ice import IceServers
from sglang_omni.serve.realtime.playback import FRAME, FRAME_MS, CallPlayback
from sglang_omni.serve.realtime.session import MAX_SECONDS_OF_SESSION, Session
from sglang_omni.serve.realtime.sound import RATE, Samples

logger = logging.getLogger(__name__)
# It logs every pair of addresses that it tries.
logging.getLogger("aioice").setLevel(logging.WARNING)

CHANNEL = "oai-events"
# A client that has not connected by then does not.
CONNECT_TIMEOUT_S = 30.0
# Browsers take no longer messages: an item's sound, when it is retrieved, may be longer.
MAX_EVENT_BYTES = 256 * 2**10
# Events wait in the session's outbox, which has a bound, rather than in the channel.
_CHANNEL_BYTES = 2**20
_LAST_EVENTS_S = 1.0
# A client that sends events so much faster than they are read is hung up on.
_UNREAD_EVENTS = 1024


class Speaker(MediaStreamTrack):
    """The track that a client hears."""

    kind = "audio"

    def __init__(self, playback: CallPlayback) -> None:
        super().__init__()
        self._playback = playback
        self._sent = 0
        self._start: float | None = None

    async def recv(self) -> av.AudioFrame:
        """The next 20 ms, when their time has come."""
        if self.readyState != "live":
            raise MediaStreamError
        now = time.monotonic()
        if self._start is None:
            self._start = now
        due = self._start + self._sent * FRAME_MS / 1000
        if due > now:
            await asyncio.sleep(due - now)
        frame = av.AudioFrame.from_ndarray(self._playback.frame()[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        frame.time_base = Fraction(1, RATE)
        frame.pts = self._sent * FRAME
        self._sent += 1
        return frame


class Peer:
    """The server's end of one call.

    Args:
        playback: What the client hears.
        ice_servers: Give it addresses that other networks reach, beside its own.

    Attributes:
        closed: Set once the connection is over, whichever side ended it.
    """

    def __init__(self, playback: CallPlayback, ice_servers: IceServers) -> None:
        self._turn = ice_servers.turn
        servers = [RTCIceServer(url, ice_servers.username, ice_servers.password) for url in ice_servers.urls]
        # Without a list of servers aiortc asks one of Google's for this machine's public address.
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._speaker = Speaker(playback)
        self._channel: asyncio.Future[RTCDataChannel] = asyncio.get_running_loop().create_future()
        self._microphone: asyncio.Future[MediaStreamTrack] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[str | None] = asyncio.Queue()
        self.closed = asyncio.Event()
        self._connection.on("datachannel", self._on_channel)
        self._connection.on("track", self._on_track)
        self._connection.on("connectionstatechange", self._on_state)

    async def answer(self, offer: str) -> str:
        """The answer to an offer, with the addresses of this machine.

        Raises:
            RequestError: The offer cannot be read, or offers no channel for events.
        """
        try:
            await self._connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        except Exception as exc:
            raise RequestError(f"sdp: not a WebRTC offer: {exc}", param="sdp", code="invalid_sdp") from exc
        if self._connection.sctp is None:
            raise RequestError(
                f"sdp: offers no data channel: create one named {CHANNEL!r} before the offer",
                param="sdp",
                code="invalid_sdp",
            )
        if any(transceiver.kind == "audio" for transceiver in self._connection.getTransceivers()):
            self._connection.addTrack(self._speaker)
        await self._connection.setLocalDescription(await self._connection.createAnswer())
        sdp: str = self._connection.localDescription.sdp
        if self._turn is not None and " typ relay" not in sdp:
            # aioice goes on without it, silently.
            logger.warning("%s gave a call no relay: it is down, or refuses the credentials", self._turn)
        return sdp

    async def connected(self) -> None:
        """Returns once the client's channel for events is open.

        Raises:
            TimeoutError: It did not come in time, or the connection is over.
        """
        over = asyncio.ensure_future(self.closed.wait())
        try:
            await asyncio.wait(
                (self._channel, over), timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            over.cancel()
        if not self._channel.done():
            raise TimeoutError("no connection came about")

    async def receive(self) -> str | None:
        """The client's next event; None once the connection is over."""
        return await self._events.get()

    async def send(self, event: str) -> None:
        """Sends an event as JSON; waits while too much is on its way."""
        channel = await self._channel
        while channel.bufferedAmount > _CHANNEL_BYTES and not self.closed.is_set():
            await asyncio.sleep(0.02)
        if channel.readyState == "open":
            channel.send(event)

    async def hear(self, add: Callable[[Samples], Awaitable[None]]) -> None:
        """Gives what the microphone records to ``add``, float32 of shape (n,) at 24 kHz, until it ends."""
        microphone = await self._microphone
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        try:
            while True:
                for frame in resampler.resample(await microphone.recv()):
                    await add(frame.to_ndarray()[0])
        except MediaStreamError:
            return

    async def close(self) -> None:
        """Hangs up, once the client has been sent what is on its way."""
        if self._channel.done() and not self.closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_EVENTS_S):
                    while self._channel.result().bufferedAmount:
                        await asyncio.sleep(0.01)
        self._speaker.stop()
        await self._connection.close()
        self._end()

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL or self._channel.done():
            return
        channel.on("message", self._on_message)
        channel.on("close", self._end)
        self._channel.set_result(channel)

    def _on_message(self, message: str | bytes) -> None:
        if self._events.qsize() >= _UNREAD_EVENTS:
            self._end()
            return
        self._events.put_nowait(message if isinstance(message, str) else message.decode(errors="replace"))

    def _on_track(self, track: MediaStreamTrack) -> None:
        if track.kind == "audio" and not self._microphone.done():
            self._microphone.set_result(track)

    def _on_state(self) -> None:
        if self._connection.connectionState in ("failed", "closed"):
            self._end()

    def _end(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self._events.put_nowait(None)


class Call:
    """A session, and the client that it talks to."""

    def __init__(self, peer: Peer, session: Session) -> None:
        self._peer = peer
        self._session = session
        self._is_refused = False
        # Events and sound come side by side; a session takes one after the other.
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Converses until the client leaves, the session is over, or ``hang_up`` is called."""
        session, peer = self._session, self._peer
        session.begin()
        tasks: list[asyncio.Task[None]] = []
        try:
            await peer.connected()
            receiving, sending = asyncio.create_task(self._receive()), asyncio.create_task(self._send())
            tasks = [receiving, sending, asyncio.create_task(peer.hear(self._hear))]
            await asyncio.wait(
                {receiving, sending}, timeout=MAX_SECONDS_OF_SESSION, return_when=asyncio.FIRST_COMPLETED
            )
            if not receiving.done() and not sending.done():
                session.expire()
                await sending
        except TimeoutError:
            return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await session.close()
            await peer.close()

    async def hang_up(self) -> None:
        await self._peer.close()

    async def _receive(self) -> None:
        while (event := await self._peer.receive()) is not None:
            async with self._turn:
                await self._session.receive(event)

    async def _send(self) -> None:
        while (event := await self._session.outbox.get()) is not None:
            text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
            if len(text.encode()) > MAX_EVENT_BYTES:
                too_long = f"{event['type']} has over {MAX_EVENT_BYTES} bytes, the limit of a data channel"
                self._session.tell_error(RequestError(too_long, code="event_too_large"))
                continue
            await self._peer.send(text)

    async def _hear(self, samples: Samples) -> None:
        # A microphone goes on when the buffer is full: the client is sent one event.
        try:
            async with self._turn:
                await self._session.hear(samples)
            self._is_refused = False
        except RequestError as exc:
            if not self._is_refused:
                self._session.tell_error(exc)
            self._is_refused = True
