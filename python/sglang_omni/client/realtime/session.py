"""A realtime session as a caller holds it: sends text and sound, and gives what comes back."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, Self
from urllib.parse import urlencode

import httpx
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidStatus, WebSocketException

from sglang_omni.client.http.errors import error_of_response
from sglang_omni.client.realtime.events import (
    AnswerDone,
    AnswerSound,
    AnswerStarted,
    AnswerText,
    FunctionCalled,
    Heard,
    RealtimeAnswer,
    RealtimeEvent,
    RealtimeFault,
    SpeakerStarted,
    typed_event,
)
from sglang_omni.client.realtime.settings import RATE
from sglang_omni.client.types import ClientError, ServerUnreachable
from sglang_omni.generation.audio import Resampler
from sglang_omni.generation.samples import Samples, encode_pcm, to_mono
from sglang_omni.proto import RequestError

_CONNECT_TIMEOUT_S = 10.0
# A server may send a second of sound, or a whole item, in one message.
_MAX_MESSAGE_BYTES = 64 * 2**20
# Sound of one message, in bytes: far below what servers take.
_PIECE_BYTES = 2 * RATE


class RealtimeSession:
    """A conversation over ``/v1/realtime``; ``Client.realtime`` makes it, ``async with`` opens it.

    Sound goes in with ``send_audio`` at any rate, and comes out at 24 kHz. Iterating over the session gives
    its events; ``answer`` and ``ask`` collect those of a whole answer. One task at a time may do either.

    Raises:
        ServerUnreachable: No server listens there.
        RequestError: The server refuses the session, or what was sent in it.
        ClientError: The session ended with an error.
    """

    def __init__(
        self, base_url: str, headers: dict[str, str], model: str | None, fields: dict[str, Any]
    ) -> None:
        query = "?" + urlencode({"model": model}) if model else ""
        self._url = f"ws{base_url.removeprefix('http')}/v1/realtime{query}"
        self._headers, self._fields = headers, fields
        self._socket: ClientConnection | None = None
        self._resampler = Resampler(RATE)
        self._is_answering = False
        # Of the answer whose sound came last: its item, the sound's place in it, and its length.
        self._spoken_item: tuple[str, int] | None = None
        self._spoken_samples = 0
        # Its last sound may still be on its way.
        self._cut_item: str | None = None

    async def __aenter__(self) -> Self:
        try:
            self._socket = await connect(
                self._url,
                additional_headers=self._headers,
                open_timeout=_CONNECT_TIMEOUT_S,
                max_size=_MAX_MESSAGE_BYTES,
                # Sound does not get smaller.
                compression=None,
                proxy=None,
            )
        except InvalidStatus as exc:
            answer = exc.response
            content = answer.body or b""
            raise error_of_response(httpx.Response(answer.status_code, content=bytes(content))) from exc
        except (OSError, WebSocketException) as exc:
            if isinstance(exc, TimeoutError):
                raise TimeoutError(f"no answer from {self._url} in time") from exc
            raise ServerUnreachable(f"no server answers at {self._url}: {exc}") from exc
        try:
            await self._expect("session.created")
            await self.update(self._fields)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session; the server forgets the conversation."""
        if self._socket is not None:
            await self._socket.close()

    async def update(self, fields: dict[str, Any]) -> None:
        """Changes these fields of OpenAI's object ``session``, before anything else is sent.

        Raises:
            RequestError: The server refuses one.
        """
        await self.send("session.update", session={"type": "realtime", **fields})
        await self._expect("session.updated")

    async def send(self, kind: str, **fields: Any) -> None:
        """Sends any event of OpenAI's protocol."""
        if self._socket is None:
            raise ClientError("the session is not open; use it in `async with`")
        try:
            await self._socket.send(json.dumps({"type": kind, **fields}))
        except ConnectionClosed as exc:
            raise self._ended(exc) from exc

    async def send_text(self, text: str, *, respond: bool = True) -> None:
        """Adds a turn of text, and asks for its answer unless ``respond`` is false."""
        content = [{"type": "input_text", "text": text}]
        await self.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content}
        )
        if respond:
            await self.respond()

    async def send_audio(self, audio: Any, sample_rate: int = RATE) -> None:
        """Adds sound to the turn that is being spoken.

        Args:
            audio: Samples of shape (samples,) or (channels, samples), or PCM16 bytes.
            sample_rate: In Hz. Another rate than 24,000 needs soxr.
        """
        await self._append(self._resampler.add(to_mono(audio), sample_rate))

    async def _append(self, samples: Samples) -> None:
        pcm = encode_pcm(samples)
        for start in range(0, len(pcm), _PIECE_BYTES):
            piece = base64.b64encode(pcm[start : start + _PIECE_BYTES]).decode("ascii")
            await self.send("input_audio_buffer.append", audio=piece)

    async def commit(self, *, respond: bool = True) -> None:
        """Ends the turn that is being spoken; only needed if the server detects no turns."""
        await self._append(self._resampler.finish())
        await self.send("input_audio_buffer.commit")
        if respond:
            await self.respond()

    async def respond(self, **fields: Any) -> None:
        """Asks for an answer; ``fields`` are those of OpenAI's object ``response``."""
        await self.send("response.create", **({"response": fields} if fields else {}))

    async def return_from(self, call: FunctionCalled, result: Any) -> None:
        """Tells what a function has returned, as JSON, and asks for the next answer."""
        output = result if isinstance(result, str) else json.dumps(result)
        item = {"type": "function_call_output", "call_id": call.call_id, "output": output}
        await self.send("conversation.item.create", item=item)
        await self.respond()

    async def interrupt(self, played_s: float | None = None) -> None:
        """Ends the answer under way, and cuts it in the conversation to what was heard of it.

        To be called when the listener stops the answer, or for ``SpeakerStarted``.

        Args:
            played_s: Seconds of its sound that were played; None for all that has come.
        """
        if self._is_answering:
            await self.send("response.cancel")
        if self._spoken_item is not None:
            item_id, index = self._spoken_item
            heard_ms = self._spoken_samples * 1000 // RATE
            if played_s is not None:
                heard_ms = min(heard_ms, round(played_s * 1000))
            await self.send(
                "conversation.item.truncate", item_id=item_id, content_index=index, audio_end_ms=heard_ms
            )
            self._cut_item, self._spoken_item = item_id, None

    async def ask(self, text: str) -> RealtimeAnswer:
        """Sends a turn of text; returns its whole answer."""
        await self.send_text(text)
        return await self.answer()

    async def answer(self) -> RealtimeAnswer:
        """The next whole answer, once it is done; if it was interrupted, what there is of it.

        Raises:
            RequestError: Something that was sent is wrong.
            ClientError: The answer failed, or the session ended before it was done.
        """
        answer = RealtimeAnswer()
        sound: list[Samples] = []
        async for event in self:
            match event:
                case RealtimeFault():
                    raise _refusal(event)
                case Heard():
                    answer.heard = event.text
                case AnswerText():
                    answer.text += event.text
                case AnswerSound():
                    sound.append(event.samples)
                case FunctionCalled():
                    answer.calls.append(event)
                case AnswerDone(status="failed"):
                    raise ClientError(f"the answer failed: {event.reason or 'the server gives no reason'}")
                case AnswerDone():
                    answer.status, answer.reason, answer.usage = event.status, event.reason, event.usage
                    answer.samples = np.concatenate(sound) if sound else None
                    return answer
        raise ClientError("the session ended before the answer was done")

    async def __aiter__(self) -> AsyncIterator[RealtimeEvent]:
        while (event := await self.next_event()) is not None:
            yield event

    async def next_event(self) -> RealtimeEvent | None:
        """The next event, once there is one; None if the session has ended.

        Raises:
            ClientError: It ended with an error.
        """
        if self._socket is None:
            raise ClientError("the session is not open; use it in `async with`")
        try:
            message = await self._socket.recv()
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as exc:
            raise self._ended(exc) from exc
        event = typed_event(json.loads(message))
        self._follow(event)
        return event

    def _follow(self, event: RealtimeEvent) -> None:
        """Keeps what ``interrupt`` needs to know."""
        match event:
            case AnswerStarted():
                self._is_answering = True
            case AnswerDone() | SpeakerStarted():
                # If a speaker begins, the server itself ends the answer.
                self._is_answering = False
            case AnswerSound() if event.item_id != self._cut_item:
                place = (event.item_id, int(event.fields.get("content_index", 0)))
                if place != self._spoken_item:
                    self._spoken_item, self._spoken_samples = place, 0
                self._spoken_samples += len(event.samples)

    async def _expect(self, kind: str) -> None:
        async for event in self:
            if isinstance(event, RealtimeFault):
                raise _refusal(event)
            if event.type == kind:
                return
        raise ClientError(f"the session ended before {kind}")

    def _ended(self, exc: ConnectionClosed) -> ClientError:
        frame = exc.rcvd
        why = f"{frame.code} {frame.reason}".strip() if frame is not None else "the connection was lost"
        return ClientError(f"the session at {self._url} ended: {why}")


def _refusal(fault: RealtimeFault) -> RequestError:
    return RequestError(fault.message, param=fault.param, code=fault.code)
