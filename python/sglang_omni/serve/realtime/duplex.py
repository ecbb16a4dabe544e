"""The answer of a model that listens while it speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.request import GenerateRequest, SoundStream
from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime import g711
from sglang_omni.serve.realtime.config import SessionConfig, chat_params
from sglang_omni.serve.realtime.items import Item
from sglang_omni.serve.realtime.outbox import EventQueue
from sglang_omni.serve.realtime.response import Caller, Response, ResponseRequest
from sglang_omni.serve.realtime.sound import RATE, Samples
from sglang_omni.serve.state import AppState

# Sound of the answer that a client may leave unread: what comes later is no answer to what it hears.
MAX_UNREAD_S = 4.0
# Sound of the client's that the pipeline has not taken.
MAX_UNHEARD_S = 4.0
_DROPPED = frozenset({"session_too_slow", "client_too_slow"})


class DuplexResponse(Response):
    """A response from the first sound of the client's to the end of the session, a cancel or a failure.

    A failure is an ``error`` event too; if the session or its client is too slow, it is over.
    """

    def __init__(
        self,
        server: AppState,
        outbox: EventQueue,
        config: SessionConfig,
        caller: Caller,
    ) -> None:
        request = ResponseRequest(config, [], None, None)
        super().__init__(server, outbox, request, caller, on_heard=lambda _: None, listener=None)
        self._heard = asyncio.Queue[Samples]()
        self._unheard = 0

    def hear(self, samples: Samples) -> None:
        """Take the next sound, float32 of shape (n,) at ``RATE``.

        Raises:
            RequestError: Too much waits; this is not taken.
        """
        if self._unheard + len(samples) > MAX_UNHEARD_S * RATE:
            raise RequestError(
                f"audio: {self._unheard / RATE:.1f} s of sound wait to be heard, and this is left out: send "
                "sound at the pace at which it is spoken",
                param="audio",
                code="rate_limit_exceeded",
            )
        self._unheard += len(samples)
        self._heard.put_nowait(samples)

    def _generate_request(self, items: Sequence[Item]) -> GenerateRequest:
        config = self.request.config
        return GenerateRequest(
            sound=SoundStream(RATE, self._sound()),
            extra_params=chat_params(config),
            output_modalities=["text", "audio"] if config.is_spoken else ["text"],
            metadata={"task": "duplex"},
            session_id=self._caller.session_key,
            owner=self._caller.owner,
        )

    async def _sound(self) -> AsyncGenerator[Samples, None]:
        while True:
            samples = await self._heard.get()
            self._unheard -= len(samples)
            yield samples

    async def _run(self) -> None:
        await super()._run()
        if self._error is not None:
            self._outbox.put("error", error={**self._error, "event_id": None})
            if self._error["code"] in _DROPPED:
                self._outbox.close()

    async def _send(self, parts: AsyncGenerator[GenerateChunk, None]) -> None:
        async def in_time() -> AsyncGenerator[GenerateChunk, None]:
            async for part in parts:
                yield part
                self._check_reader()

        await super()._send(in_time())

    def _check_reader(self) -> None:
        """
        Raises:
            RequestError: The client reads more slowly than the model speaks.
        """
        is_pcm = self.request.config.audio.output.format.type == "audio/pcm"
        seconds = self._outbox.sound_bytes / (2 * RATE if is_pcm else g711.RATE)
        if seconds > MAX_UNREAD_S:
            raise RequestError(
                f"the client has left {seconds:.1f} s of sound unread, and may leave {MAX_UNREAD_S:g} s: the "
                "session is over; open another one, and read its events as they come",
                code="client_too_slow",
            )
