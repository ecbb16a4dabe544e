"""One response: a request to the pipeline, and the events that its answer is sent in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.request_ids import RequestName
from sglang_omni.serve.realtime.config import SessionConfig, chat_params
from sglang_omni.serve.realtime.conversation import Conversation, messages_of
from sglang_omni.serve.realtime.events import error_fields, new_id
from sglang_omni.serve.realtime.items import Item
from sglang_omni.serve.realtime.listener import AnswerListener
from sglang_omni.serve.realtime.outbox import EventQueue
from sglang_omni.serve.realtime.outputs import Outputs
from sglang_omni.serve.state import AppState
from sglang_omni.serve.word_times import check_granularities

Reason = Literal["turn_detected", "client_cancelled", "max_output_tokens"]
Status = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
_TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True)
class ResponseRequest:
    """What a response is asked for.

    Attributes:
        config: The session's configuration, with what this response overrides.
        items: What it answers.
        conversation: Where its items go; None: nowhere.
        metadata: Of the client's own.
    """

    config: SessionConfig
    items: Sequence[Item]
    conversation: Conversation | None
    conversation_id: str | None
    metadata: dict[str, str] | None = None


@dataclass
class Caller:
    """Whose requests a session makes, and what they have in common."""

    owner: str | None = None
    session_key: str | None = None
    running: set[asyncio.Task[None]] = field(default_factory=set)


class Response:
    """
    Args:
        on_heard: Called with what the pipeline has heard in the last message of the prompt.
        after: What must have ended before it begins.
        listener: Hears its sound in place of events.
    """

    def __init__(
        self,
        server: AppState,
        outbox: EventQueue,
        request: ResponseRequest,
        caller: Caller,
        *,
        on_heard: Callable[[str], None],
        after: Collection[asyncio.Task[None]] = (),
        listener: AnswerListener | None = None,
    ) -> None:
        self.id = new_id("resp")
        self.status: Status = "in_progress"
        self.request = request
        self._server = server
        self._outbox = outbox
        self._caller = caller
        self._on_heard = on_heard
        self._after = list(after)
        self._listener = listener
        self._reason: Reason | None = None
        self._error: dict[str, Any] | None = None
        self._usage: UsageInfo | None = None
        self._task: asyncio.Task[None] | None = None
        self._outputs = Outputs(
            self.id,
            outbox,
            request.conversation,
            is_spoken=request.config.is_spoken,
            sound=request.config.audio.output.format,
            listener=listener,
            times=check_granularities(server, request.config.audio.output.timestamp_granularities),
        )

    @property
    def played_at(self) -> float:
        """When a client that plays the sound as it comes has played it, by ``time.monotonic``."""
        return self._outputs.played_at

    def begin(self) -> asyncio.Task[None]:
        self._outbox.put("response.created", response=self.shown())
        self._task = asyncio.create_task(self._run())
        return self._task

    def cancel(self, reason: Literal["turn_detected", "client_cancelled"]) -> None:
        """End it at once: no event of it follows, and the pipeline stops."""
        self._end("cancelled", reason)
        if self._task is not None:
            self._task.cancel()

    def shown(self) -> dict[str, Any]:
        config = self.request.config
        details: dict[str, Any] | None = None
        if self.status in ("cancelled", "incomplete", "failed"):
            details = {"type": self.status}
            if self._reason is not None:
                details["reason"] = self._reason
            if self._error is not None:
                details["error"] = self._error
        sound = config.audio.output
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": self.status,
            "status_details": details,
            "output": [item.shown() for item in self._outputs.items],
            "conversation_id": self.request.conversation_id,
            "output_modalities": config.output_modalities,
            "max_output_tokens": config.max_output_tokens,
            "audio": {"output": {"format": sound.format.model_dump(), "voice": sound.voice_name}},
            "usage": None if self._usage is None else _usage(self._usage),
            "metadata": self.request.metadata,
        }

    async def _run(self) -> None:
        try:
            if self._after:
                await asyncio.wait(self._after)
            items: Sequence[Item] = [item for item in self.request.items if not item.is_left_out]
            while True:
                try:
                    await self._answer(items)
                    return
                except RequestError as exc:
                    is_cut = self.request.config.truncation == "auto" and exc.code == _TOO_LONG
                    if not is_cut or not (fewer := _newer_half(items)):
                        raise
                    for item in items[: -len(fewer)]:
                        item.is_left_out = True
                    items = fewer
        except Exception as exc:  # noqa: BLE001  # it is sent to the client, and logged if it is unexpected
            self._end("failed", error=error_fields(exc))

    async def _answer(self, items: Sequence[Item]) -> None:
        """
        Raises:
            RequestError: The pipeline refuses the request.
        """
        server, request = self._server, self._generate_request(items)
        name = RequestName(self.id, self.id, owner=self._caller.owner)
        permit = await server.admission.acquire(asyncio.Event().wait)
        assert permit is not None
        try:
            request_id = await server.running.admit(name, None)
            async with aclosing(server.transport.parts(request, request_id)) as parts:
                await self._send(parts)
        finally:
            server.running.leave(name)
            server.admission.release(permit)

    def _generate_request(self, items: Sequence[Item]) -> GenerateRequest:
        server, config = self._server, self.request.config
        params = chat_params(config)
        kept = server.encoded_voice(params.get("voice"), "session.audio.output.voice", self._caller.owner)
        if kept is not None:
            del params["voice"]
        return GenerateRequest(
            messages=messages_of(items, config.instructions),
            extra_params=params,
            voice=kept,
            output_modalities=["text", "audio"] if config.is_spoken else ["text"],
            metadata={"task": "chat"},
            timeout=server.timeout(None),
            session_id=self._caller.session_key,
            owner=self._caller.owner,
        )

    async def _send(self, parts: AsyncGenerator[GenerateChunk, None]) -> None:
        outputs, begun = self._outputs, time.monotonic()
        async for part in parts:
            if part.input_transcript is not None:
                self._on_heard(part.input_transcript)
            is_first = not outputs.items
            if part.text:
                outputs.add_text(part.text)
            if (samples := part.samples) is not None:
                outputs.add_sound(part, samples)
            for call in part.tool_calls:
                outputs.add_call(call)
            if is_first and outputs.items:
                self._server.metrics.first_output(time.monotonic() - begun)
            if part.finish_reason is not None:
                self._usage = part.usage
                self._server.metrics.finished(part.usage)
                self._finish(part.finish_reason)

    def _finish(self, finish_reason: str) -> None:
        if finish_reason == "abort":
            self._end("cancelled", "client_cancelled")
        elif finish_reason == "length":
            self._end("incomplete", "max_output_tokens")
        else:
            self._end("completed")

    def _end(
        self, status: Status, reason: Reason | None = None, *, error: dict[str, Any] | None = None
    ) -> None:
        if self.status != "in_progress":
            return
        self.status, self._reason, self._error = status, reason, error
        self._outputs.end(is_complete=status in ("completed", "incomplete"), status=status)
        if self._listener is not None:
            self._listener.finish(self.id)
        self._outbox.put("response.done", response=self.shown())


def _newer_half(items: Sequence[Item]) -> Sequence[Item]:
    """The newer half of a conversation, from a user's message on; empty if there is none in it."""
    for index in range(max(1, len(items) // 2), len(items)):
        if items[index].role == "user":
            return items[index:]
    return []


def _usage(usage: UsageInfo) -> dict[str, Any]:
    """The counts of the language model's tokens, all of which are shown as text."""
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    cached = usage.cached_tokens or 0
    return {
        "total_tokens": prompt + completion,
        "input_tokens": prompt,
        "output_tokens": completion,
        "input_token_details": {
            "text_tokens": prompt,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": completion, "audio_tokens": 0},
    }
