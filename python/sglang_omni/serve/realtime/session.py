"""A realtime session: takes a client's events, and emits events, over whatever carries them."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeVar

from sglang_omni.proto import RequestError
from sglang_omni.serve.front.warnings import collected
from sglang_omni.serve.realtime.clip import Clip
from sglang_omni.serve.realtime.config import SessionConfig
from sglang_omni.serve.realtime.config_checks import default_config, updated
from sglang_omni.serve.realtime.conversation import Conversation
from sglang_omni.serve.realtime.detectors import create_detector
from sglang_omni.serve.realtime.duplex import DuplexResponse
from sglang_omni.serve.realtime.duplex_checks import check_call, check_event
from sglang_omni.serve.realtime.events import (
    ClientEvent,
    InputAudioAppend,
    InputAudioClear,
    InputAudioCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputAudioClear,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    error_fields,
    new_id,
    parse_event,
    read_event,
)
from sglang_omni.serve.realtime.input_buffer import MAX_SECONDS, InputBuffer
from sglang_omni.serve.realtime.input_transcription import InputTranscripts, send_transcript
from sglang_omni.serve.realtime.items import Item, Part, base64_bytes, read_item
from sglang_omni.serve.realtime.listener import AnswerListener
from sglang_omni.serve.realtime.outbox import EventQueue
from sglang_omni.serve.realtime.response import Caller, Response, ResponseRequest
from sglang_omni.serve.realtime.response_create import read_response_request
from sglang_omni.serve.realtime.sound import RATE, Samples, SoundDecoder
from sglang_omni.serve.realtime.turns import ServerVad, SpeechStarted, SpeechStopped, TurnDetector
from sglang_omni.serve.realtime.updates import done_in_part
from sglang_omni.serve.state import AppState

T = TypeVar("T")

MAX_SECONDS_OF_SESSION = 3600
# Responses beside the one that the conversation is written by.
_MAX_RESPONSES = 8
# A client that commits its sound asks for a response at once, which tells the transcript on its way.
_ANSWER_S = 0.1
# Of silence that is kept for the beginning of a turn, which a detector sees late.
_KEPT_S = 6.0
_MIN_COMMIT_S = 0.1
# Detectors of all sessions: each takes a fraction of the time that its sound lasts.
_detecting = ThreadPoolExecutor(2, thread_name_prefix="turns")


class Session:
    """
    Args:
        model: The served model's name.
        kind: What it does: it answers, or only writes down what it hears.
        config: What it begins with; None: ``default_config``.
        listener: Hears answers in place of events.

    Attributes:
        outbox: What the client is to read.

    Raises:
        RequestError: The pipeline can do nothing of the kind.
    """

    def __init__(
        self,
        server: AppState,
        *,
        model: str,
        kind: Literal["realtime", "transcription"] = "realtime",
        config: SessionConfig | None = None,
        owner: str | None = None,
        listener: AnswerListener | None = None,
    ) -> None:
        self.id = new_id("sess")
        self.outbox = EventQueue()
        self.config = config or default_config(server, model, kind)
        self.conversation = Conversation()
        self._conversation_id = new_id("conv")
        self._server = server
        self._listener = listener
        self._expires_at = round(time.time()) + MAX_SECONDS_OF_SESSION
        # Its requests go to the same worker of a stage, which has the conversation in its cache.
        self._caller = Caller(owner, self.id if owner is None else f"{owner}:{self.id}")
        self._active: Response | None = None
        self._others: dict[str, Response] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transcripts = InputTranscripts(server, self.outbox, self._caller, self._keep)
        self._buffer = InputBuffer()
        self._decoder = SoundDecoder(self.config.audio.input.format)
        self._detector: TurnDetector | None = None
        self._detected_from = 0
        # The turn that goes on: its item's id, and its first sample's place.
        self._turn: tuple[str, int] | None = None
        # From where on the client has been silent after an answer.
        self._idle_from: int | None = None
        self._new_detector()
        self._handlers: dict[type[ClientEvent], Callable[[Any], Coroutine[Any, Any, None]]] = {
            SessionUpdate: self._update,
            InputAudioAppend: self._append,
            InputAudioCommit: self._commit,
            InputAudioClear: self._clear,
            OutputAudioClear: self._clear_output,
            ItemCreate: self._create_item,
            ItemRetrieve: self._retrieve_item,
            ItemDelete: self._delete_item,
            ItemTruncate: self._truncate_item,
            ResponseCreate: self._create_response,
            ResponseCancel: self._cancel_response,
        }

    def begin(self) -> None:
        self.outbox.put("session.created", session=self.shown())

    def shown(self) -> dict[str, Any]:
        return {
            "object": "realtime.session",
            "id": self.id,
            "expires_at": self._expires_at,
            **self.config.shown(),
        }

    async def receive(
        self, text: str, translated: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    ) -> None:
        """Take one event of the client's, as JSON. What is wrong with it is sent in an event.

        Args:
            translated: Gives an event of another form of the protocol in this one's names.
        """
        fields: dict[str, Any] = {}
        try:
            fields = parse_event(text)
            event = read_event(translated(fields) if translated else fields)
            if self.config.duplex:
                check_event(event)
            await self._handlers[type(event)](event)
        except Exception as exc:  # noqa: BLE001  # it is sent to the client
            event_id = fields.get("event_id")
            self.tell_error(exc, event_id if isinstance(event_id, str) else None)

    async def hear(self, samples: Samples) -> None:
        """Take the next sound of the client's, float32 of shape (n,) at ``RATE``.

        Raises:
            RequestError: There is more than a turn may have, or the pipeline takes no sound.
        """
        self._server.check_input("audio", "audio")
        if self.config.duplex:
            self._talk(samples)
            return
        self._buffer.add(samples)
        self._transcripts.add(samples)
        if self._detector is None:
            return
        loop = asyncio.get_running_loop()
        for detected in await loop.run_in_executor(_detecting, self._detector.feed, samples):
            if isinstance(detected, SpeechStarted):
                self._turn_begins(detected.audio_start_ms)
            else:
                self._turn_ends(detected)
        self._answer_silence()
        if self._turn is None:
            self._buffer.drop(self._buffer.end - round(_KEPT_S * RATE))
        elif self._buffer.seconds > MAX_SECONDS - 1:
            self._turn_ends(SpeechStopped(_ms(self._buffer.end - self._detected_from)))
            self._new_detector()

    async def close(self) -> None:
        """End all that runs for it."""
        self.outbox.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def expire(self) -> None:
        minutes = MAX_SECONDS_OF_SESSION // 60
        exc = RequestError(f"the session has lasted {minutes} minutes, the limit", code="session_expired")
        self.tell_error(exc)
        self.outbox.close()

    async def configure(self, fields: dict[str, Any]) -> None:
        """Change what the fields name.

        Raises:
            RequestError: A field is unknown, wrong, or beyond the pipeline.
        """
        self._take(await _off_loop(self._updated, fields))

    def _updated(self, fields: dict[str, Any]) -> SessionConfig:
        model = fields.get("model")
        if isinstance(model, str) and model != self.config.model:
            self._server.ignore(
                "session.model", f"it was set to {self.config.model!r} when the session began"
            )
            fields = {name: value for name, value in fields.items() if name != "model"}
        # The first use of a detector loads it.
        new = updated(self.config, fields, self._server, self._caller.owner)
        check_call(new, in_call=self._listener is not None)
        if new.type != self.config.type and len(self.conversation):
            raise RequestError(
                "session.type: cannot change once the conversation has begun",
                param="session.type",
                code="invalid_value",
            )
        return new

    def _take(self, new: SessionConfig) -> None:
        if new.duplex != self.config.duplex and self._active is not None:
            self._active.cancel("client_cancelled")
        old, self.config = self.config.audio.input, new
        if new.audio.input.format != old.format:
            self._decoder = SoundDecoder(new.audio.input.format)
        if new.audio.input.turn_detection != old.turn_detection:
            self._new_detector()

    def tell_error(self, exc: Exception, event_id: str | None = None) -> None:
        """``event_id``: the client's name of the event that is wrong."""
        self.outbox.put("error", error={**error_fields(exc), "event_id": event_id})

    async def _update(self, event: SessionUpdate) -> None:
        with collected() as warnings:
            new, faults = await _off_loop(done_in_part, event.session, self._updated)
        for fault in faults:
            self.tell_error(fault, event.event_id)
        # Clients take an error alone for an update that changed nothing.
        if new is not None and not (faults and new == self.config):
            self._take(new)
            more = {"warnings": list(warnings)} if warnings else {}
            self.outbox.put("session.updated", session=self.shown(), **more)

    async def _append(self, event: InputAudioAppend) -> None:
        await self.hear(self._decoder.add(base64_bytes(event.audio, "audio")))

    async def _commit(self, event: InputAudioCommit) -> None:
        self._buffer.add(self._decoder.finish())
        if self._buffer.seconds < _MIN_COMMIT_S:
            raise RequestError(
                f"the input audio buffer has {1000 * self._buffer.seconds:.0f} ms of sound, and a turn needs "
                f"at least {1000 * _MIN_COMMIT_S:.0f} ms",
                code="input_audio_buffer_commit_empty",
            )
        item_id = self._turn[0] if self._turn is not None else new_id("item")
        self._new_detector()
        self._add_turn(item_id, self._buffer.take(self._buffer.start, self._buffer.end))

    async def _clear(self, event: InputAudioClear) -> None:
        self._buffer.clear()
        self._transcripts.drop()
        self._new_detector()
        self.outbox.put("input_audio_buffer.cleared")

    async def _clear_output(self, event: OutputAudioClear) -> None:
        if self._listener is None:
            raise RequestError(
                "output_audio_buffer.clear: this client plays the sound itself; cancel the response",
                code="unsupported_parameter",
            )
        if self._active is not None:
            self._active.cancel("client_cancelled")
        self._silence()

    async def _create_item(self, event: ItemCreate) -> None:
        item = read_item(event.item, self._server, self.config.audio.input.format)
        before = self.conversation.add(item, event.previous_item_id)
        self._tell_item(item, before)

    async def _retrieve_item(self, event: ItemRetrieve) -> None:
        item = self.conversation.get(event.item_id)
        audio = self.config.audio
        sound = audio.output.format if item.role == "assistant" else audio.input.format
        self.outbox.put("conversation.item.retrieved", item=item.shown(sound))

    async def _delete_item(self, event: ItemDelete) -> None:
        self.conversation.delete(event.item_id)
        self.outbox.put("conversation.item.deleted", item_id=event.item_id)

    async def _truncate_item(self, event: ItemTruncate) -> None:
        self.truncate(event.item_id, event.content_index, event.audio_end_ms)

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Cut an answer's sound and its transcript where the client has stopped playing it.

        Raises:
            RequestError: The item is no spoken answer, or is not as long.
        """
        transcript = self.conversation.truncate(item_id, content_index, audio_end_ms)
        self.outbox.put(
            "conversation.item.truncated",
            item_id=item_id,
            content_index=content_index,
            audio_end_ms=audio_end_ms,
            transcript=transcript,
        )

    async def _create_response(self, event: ResponseCreate) -> None:
        request = read_response_request(
            event.response, self.config, self.conversation, self._conversation_id, self._server, self._caller
        )
        self._respond(request)

    async def _cancel_response(self, event: ResponseCancel) -> None:
        response = self._active
        if event.response_id is not None and (response is None or response.id != event.response_id):
            response = self._others.get(event.response_id)
        if response is None:
            raise RequestError(
                "Cancellation failed: no response is in progress", code="response_cancel_not_active"
            )
        response.cancel("client_cancelled")

    def _next_response(self) -> ResponseRequest:
        """The request for an answer to the conversation as it is now."""
        items = list(self.conversation.items)
        return ResponseRequest(self.config, items, self.conversation, self._conversation_id)

    def _respond(self, request: ResponseRequest) -> None:
        if self.config.type == "transcription":
            raise RequestError("a transcription session gives no responses", code="invalid_value")
        if request.conversation is not None:
            if self._active is not None:
                raise RequestError(
                    f"the conversation has the response {self._active.id} in progress: wait for its "
                    "response.done, or cancel it",
                    code="conversation_already_has_active_response",
                )
            self.conversation.check_room()
        elif len(self._others) >= _MAX_RESPONSES:
            raise RequestError(
                f"{_MAX_RESPONSES} responses are in progress, the limit: wait for one",
                code="rate_limit_exceeded",
            )
        spoken = _last_spoken(request)
        if not any(item is spoken for item in self.conversation.items):
            spoken = None
        response = Response(
            self._server,
            self.outbox,
            request,
            self._caller,
            on_heard=lambda transcript: self._heard(spoken, transcript),
            after=self._transcripts.awaited(request.items),
            listener=self._listener if request.conversation is not None else None,
        )
        if request.conversation is not None:
            self._active = response
        else:
            self._others[response.id] = response
        self._run(response, spoken)

    def _talk(self, samples: Samples) -> None:
        """Have the model hear more, in the response that is under way, or in a new one."""
        if self.outbox.is_closed:
            return
        response = self._active
        if not isinstance(response, DuplexResponse) or response.status != "in_progress":
            response = DuplexResponse(self._server, self.outbox, self.config, self._caller)
            self._active = response
            self._run(response, None)
        response.hear(samples)

    def _run(self, response: Response, spoken: Item | None) -> None:
        task = response.begin()
        self._keep(task)
        task.add_done_callback(lambda _: self._response_ended(response, spoken))

    def _response_ended(self, response: Response, spoken: Item | None) -> None:
        if isinstance(response, DuplexResponse):
            self._decoder = SoundDecoder(self.config.audio.input.format)
        if self._active is response:
            self._active = None
            left = max(0.0, response.played_at - time.monotonic())
            self._idle_from = self._buffer.end + round(left * RATE)
        self._others.pop(response.id, None)
        if spoken is not None and spoken.content[0].transcript is None:
            self._transcribe(spoken, delay=0.0)

    def _heard(self, item: Item | None, transcript: str) -> None:
        """Note what the pipeline itself has heard in an item."""
        if item is None or (part := item.content[0]).is_heard:
            return
        is_news = part.transcript is None
        part.transcript, part.is_heard = transcript, True
        if is_news and self.config.audio.input.transcription is not None:
            send_transcript(self.outbox, item, 0)

    def _turn_begins(self, start_ms: int) -> None:
        place = self._detected_from + round(start_ms * RATE / 1000)
        self._turn = (new_id("item"), max(place, self._buffer.start))
        self._idle_from = None
        self.outbox.put("input_audio_buffer.speech_started", audio_start_ms=_ms(place), item_id=self._turn[0])
        settings, turns = self.config.audio.input.transcription, self.config.audio.input.turn_detection
        if settings is not None and self.config.type == "transcription":
            self._transcripts.begin(self._turn[0], settings, self._buffer.since(self._turn[1]))
        if turns is not None and turns.interrupt_response:
            if self._active is not None:
                self._active.cancel("turn_detected")
            self._silence()

    def _turn_ends(self, detected: SpeechStopped) -> None:
        if self._turn is None:
            return
        (item_id, start), self._turn = self._turn, None
        end = self._detected_from + round(detected.audio_end_ms * RATE / 1000)
        self.outbox.put("input_audio_buffer.speech_stopped", audio_end_ms=_ms(end), item_id=item_id)
        self._add_turn(item_id, self._buffer.take(start, end))
        turns = self.config.audio.input.turn_detection
        if turns is not None and turns.create_response and self.config.type == "realtime":
            self._respond(self._next_response())

    def _answer_silence(self) -> None:
        """Have the model speak again if the client has been silent for long enough after its answer."""
        turns, start, end = self.config.audio.input.turn_detection, self._idle_from, self._buffer.end
        if not isinstance(turns, ServerVad) or turns.idle_timeout_ms is None or self._active is not None:
            return
        if self._turn is not None or start is None or end - start < turns.idle_timeout_ms * RATE / 1000:
            return
        item_id = new_id("item")
        self.outbox.put(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=_ms(start),
            audio_end_ms=_ms(end),
            item_id=item_id,
        )
        self._add_turn(item_id, self._buffer.take(start, end))
        self._respond(self._next_response())

    def _add_turn(self, item_id: str, samples: Samples) -> None:
        self._idle_from = None
        item = Item(item_id, "message", "user", content=[Part("input_audio", audio=Clip.of(samples))])
        before = self.conversation.add(item)
        self.outbox.put("input_audio_buffer.committed", previous_item_id=before, item_id=item_id)
        self._tell_item(item, before)
        if self.config.audio.input.transcription is not None:
            self._transcribe(item, delay=0.0 if self.config.type == "transcription" else _ANSWER_S)

    def _tell_item(self, item: Item, before: str | None) -> None:
        self.outbox.put("conversation.item.added", previous_item_id=before, item=item.shown())
        self.outbox.put("conversation.item.done", previous_item_id=before, item=item.shown())

    def _silence(self) -> None:
        """Have the listener be silent, and cut the answer where it was."""
        played = self._listener.clear() if self._listener is not None else None
        if played is not None:
            self.truncate(played.item_id, 0, played.ms)

    def _transcribe(self, item: Item, *, delay: float) -> None:
        def is_needed() -> bool:
            answered = None if self._active is None else _last_spoken(self._active.request)
            return answered is not item

        if (settings := self.config.audio.input.transcription) is not None:
            self._transcripts.write(item, settings, delay=delay, is_needed=is_needed)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_detector(self) -> None:
        """Begin to look for turns anew, from the next sample on."""
        settings = self.config.audio.input.turn_detection
        self._detector = None if settings is None else create_detector(settings)
        self._detected_from = self._buffer.end
        self._turn = None


def _last_spoken(request: ResponseRequest) -> Item | None:
    """The prompt's last user message if it is one piece of sound: a pipeline tells what it heard in it."""
    for item in reversed(request.items):
        if item.role == "user":
            is_sound = len(item.content) == 1 and item.content[0].kind == "input_audio"
            return item if is_sound else None
    return None


async def _off_loop(work: Callable[..., T], *args: Any) -> T:
    """What ``work`` returns, in the detectors' threads."""
    run = contextvars.copy_context().run
    return await asyncio.get_running_loop().run_in_executor(_detecting, partial(run, work, *args))


def _ms(samples: float) -> int:
    return round(1000 * samples / RATE)
