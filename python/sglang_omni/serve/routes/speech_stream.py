"""``WS /v1/audio/speech/stream``: text in as it comes, sound out."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from sglang_omni.generation.errors import no_audio
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import EncodedVoice
from sglang_omni.serve.front.errors import describe
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.warnings import collected
from sglang_omni.serve.front.websockets import POLICY_VIOLATION
from sglang_omni.serve.models.speech import MAX_INPUT_CHARS
from sglang_omni.serve.models.speech_stream import (
    MESSAGES,
    InputDone,
    Message,
    SessionCancel,
    SessionClose,
    SpeechStreamConfig,
    SpokenText,
)
from sglang_omni.serve.routes.socket_messages import read_message
from sglang_omni.serve.routes.speech_encoding import (
    EncodedSpeech,
    check_encodable,
    check_speech,
    speech_request,
    usage_fields,
)
from sglang_omni.serve.routes.text_stream import Sentence, Utterance
from sglang_omni.serve.state import AppState, request_id_of
from sglang_omni.serve.word_times import check_granularities

# Seconds without a message while nothing is spoken.
IDLE_S = 60.0
# Sentences that are made at once: the one that is sent, and the next.
_AT_ONCE = 2
_MAX_UTTERANCES = 16
# Most of it may be the recording of a voice.
_MAX_MESSAGE_CHARS = 2 * 2**20


def speech_stream_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/audio/speech/stream")
    async def speech_stream(websocket: WebSocket) -> None:
        """Speak text as it comes."""
        server.check_task("speech")
        session_id = await request_id_of(websocket, None)
        await websocket.accept()
        session = _Session(server, websocket, session_id)
        try:
            await session.run()
        except WebSocketDisconnect:
            return
        finally:
            await session.silence()

    return router


class _Session:
    """One connection: a row of utterances, of which the last may still be without its end."""

    def __init__(self, server: AppState, websocket: WebSocket, session_id: str) -> None:
        self._server = server
        self._websocket = websocket
        self._id = session_id
        self._config = SpeechStreamConfig()
        self._voice: EncodedVoice | None = None
        self._warnings: list[str] = []
        self._utterances: list[Utterance] = []
        self._begun = 0
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Serve the connection until its end.

        Raises:
            WebSocketDisconnect: The client left.
        """
        heard = time.monotonic()
        receiving: asyncio.Future[Any] = asyncio.ensure_future(self._websocket.receive())
        try:
            while True:
                quiet_for = time.monotonic() - heard
                done, _ = await asyncio.wait(
                    {receiving, *(utterance.task for utterance in self._utterances)},
                    timeout=max(0.0, IDLE_S - quiet_for),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if any(utterance.unspoken_chars for utterance in self._utterances):
                    heard = time.monotonic()
                for utterance in [each for each in self._utterances if each.task in done]:
                    self._utterances.remove(utterance)
                    utterance.task.result()
                    heard = time.monotonic()
                if receiving in done:
                    message = receiving.result()
                    receiving = asyncio.ensure_future(self._websocket.receive())
                    heard = time.monotonic()
                    if not await self._take(message):
                        return
                elif time.monotonic() - heard >= IDLE_S:
                    await self._end(
                        RequestError(f"no message for {IDLE_S:g} s", code="idle_timeout"), POLICY_VIOLATION
                    )
                    return
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def silence(self) -> None:
        """Drop all text, and end all requests."""
        utterances, self._utterances = self._utterances, []
        for utterance in reversed(utterances):  # or the end of one would let the next begin
            await utterance.cancel()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def _take(self, received: dict[str, Any]) -> bool:
        """Acts on a message; False if it is the last."""
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1000))
        try:
            message = _message(received)
            match message:
                case SpeechStreamConfig():
                    self._configure(message)
                case SpokenText():
                    self._speak(message.text)
                case InputDone():
                    self._complete()
                case SessionCancel():
                    await self.silence()
                    await self._send({"type": "session.cancelled", "utterance_index": self._begun - 1})
                case SessionClose():
                    await self.silence()
                    await self._websocket.close()
                    return False
        except RequestError as exc:
            await self._send_error(exc)
        return True

    def _configure(self, config: SpeechStreamConfig) -> None:
        if self._utterances and not self._utterances[-1].is_complete:
            raise RequestError(
                "session.config: not within an utterance; end it first with input.done or session.cancel",
                param="type",
                code="invalid_value",
            )
        self._server.check_model(config.model)
        with collected() as warnings:
            voice = check_speech(self._server, config, config.stage_params, owner_of(self._websocket))
        check_encodable(config.audio_format, "response_format")
        self._config, self._voice, self._warnings = config, voice, list(warnings)

    def _speak(self, text: str) -> None:
        unspoken = sum(utterance.unspoken_chars for utterance in self._utterances)
        if unspoken + len(text) > MAX_INPUT_CHARS:
            raise RequestError(
                f"text: {unspoken} characters wait to be spoken; with these {len(text)}, which are dropped, "
                f"they would be over the limit of {MAX_INPUT_CHARS}",
                param="text",
                code="input_too_long",
            )
        self._open().add(text)

    def _complete(self) -> None:
        self._open().complete()

    def _open(self) -> Utterance:
        """The utterance that has not ended, or a new one."""
        last = self._utterances[-1] if self._utterances else None
        if last is not None and not last.is_complete:
            return last
        if len(self._utterances) >= _MAX_UTTERANCES:
            raise RequestError(
                f"{_MAX_UTTERANCES} utterances wait to be spoken; wait for session.done",
                param="type",
                code="input_too_long",
            )
        number, config, warnings = self._begun, self._config, self._warnings
        voice = self._voice
        self._begun += 1

        def open_speech(text: str, index: int) -> EncodedSpeech:
            generate = speech_request(
                self._server,
                self._websocket,
                text,
                config,
                stream=True,
                model=config.model,
                session_id=session_key(self._websocket) or self._id,
                stage_params=config.stage_params,
                timeout=config.timeout,
                voice=voice,
            )
            request_id = f"{self._id}-{number}-{index}"
            return EncodedSpeech(self._server, generate, config.audio_format, request_id)

        async def send(sentence: Sentence) -> None:
            await self._send_sentence(sentence, config, number, warnings)

        async def ended(sentences: int, usage: UsageInfo) -> None:
            await self._send(
                {
                    "type": "session.done",
                    "utterance_index": number,
                    "total_sentences": sentences,
                    "usage": usage_fields(usage),
                }
            )

        utterance = Utterance(
            open_speech,
            send,
            ended,
            self._server.admission,
            self._slots,
            after=None if last is None else last.task,
            every_clause=config.split_granularity == "clause",
        )
        self._utterances.append(utterance)
        return utterance

    async def _send_sentence(
        self, sentence: Sentence, config: SpeechStreamConfig, utterance: int, warnings: list[str]
    ) -> None:
        """``audio.start`` with the first piece, the pieces, and ``audio.done``.

        An utterance's first ``audio.start`` has the warnings, as an answer over HTTP has them as headers.
        """
        place = {"utterance_index": utterance, "sentence_index": sentence.index}
        times = check_granularities(self._server, config.timestamp_granularities)
        sent, kept = 0, b""
        first = piece = await sentence.pieces.get()
        encoder = sentence.speech.encoder
        start = {"type": "audio.start", **place, "sentence_text": sentence.text}
        start |= {"format": config.audio_format, "sample_rate": encoder.sample_rate}
        if warnings and sentence.index == 0:
            start["warnings"] = warnings
        if first is not None:
            await self._send(start)
        while piece is not None:
            if config.stream_audio:
                await self._send_audio(piece, config, place)
            else:
                kept += piece
            sent += len(piece)
            piece = await sentence.pieces.get()
        if kept:
            await self._send_audio(kept, config, place)
        error = sentence.error
        if times is not None and error is None:
            words = times.add(sentence.speech.take_words(), last=True)
            await self._send(
                {"type": "audio.words", **place, "granularity": times.granularity, "words": words}
            )
        if error is not None:
            await self._send_error(error, **place)
        elif first is None:
            await self._send_error(no_audio(sentence.speech.finish_reason), **place)
        await self._send(
            {
                "type": "audio.done",
                **place,
                "total_bytes": sent,
                "error": error is not None or first is None,
                "finish_reason": sentence.speech.finish_reason if error is None else "error",
            }
        )

    async def _send_audio(self, piece: bytes, config: SpeechStreamConfig, place: dict[str, Any]) -> None:
        if config.audio_frames == "binary":
            await self._websocket.send_bytes(piece)
            return
        audio = base64.b64encode(piece).decode("ascii")
        await self._send({"type": "audio.delta", **place, "audio": audio})

    async def _send_error(self, exc: Exception, **place: Any) -> None:
        _, body = describe(exc, request_id=self._id)
        await self._send({"type": "error", **place, **body})

    async def _send(self, event: dict[str, Any]) -> None:
        await self._websocket.send_text(json.dumps(event, ensure_ascii=False, separators=(",", ":")))

    async def _end(self, exc: Exception, code: int) -> None:
        await self.silence()
        await self._send_error(exc)
        await self._websocket.close(code)


def _message(received: dict[str, Any]) -> Message:
    """
    Raises:
        RequestError: The frame holds no message of the protocol.
    """
    text = received.get("text")
    if text is None:
        raise RequestError("messages are JSON in text frames, not binary ones", code="invalid_type")
    return read_message(text, MESSAGES, _MAX_MESSAGE_CHARS)
