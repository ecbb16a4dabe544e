"""The client's transport to a coordinator in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, Protocol

from sglang_omni.client.answer_checks import check_answer, check_fields
from sglang_omni.client.observer import RequestObserver
from sglang_omni.client.request_id import new_request_id
from sglang_omni.client.results import read_chunk, result_chunk
from sglang_omni.client.transport import Transport
from sglang_omni.client.types import (
    GenerateChunk,
    GenerateRequest,
    TokenLogprob,
    ToolCall,
    UsageInfo,
    join_tool_calls,
)
from sglang_omni.proto import CompleteMessage, OmniRequest, RequestError, StageTime, StreamMessage
from sglang_omni.proto.tasks import ChatInputs, CompletionInputs, SpeechInputs, TranscriptionInputs

# Stages report their times in batches, at most this long after the result.
_TIMINGS_LAG_S = 0.03
# The sender of a result that is merged from several stages.
_MERGED = "coordinator"
_TEXT = {"text"}
# Marks a stream that ended without a result.
_END = object()


class CoordinatorLike(Protocol):
    """A coordinator as the client uses it. ``abort``, ``health`` and ``timings`` are optional.

    Cancelling ``submit``, or closing the iterator of ``stream``, ends the request that the call began and no
    other request of the same id. A duplicate id is a ``ValueError``.
    """

    async def submit(self, request_id: str, request: OmniRequest) -> Any: ...

    def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[Any]: ...


class LocalTransport(Transport):
    """
    Attributes:
        observer: Told of every request; None: nothing is.
        must_answer: Whether a result that is no answer to its request's task is an error. A program may run a
            pipeline for any result; a server's routes cannot.
    """

    def __init__(self, coordinator: CoordinatorLike) -> None:
        self.coordinator = coordinator
        self.observer: RequestObserver | None = None
        self.must_answer = False

    async def generate(
        self, request: GenerateRequest, request_id: str | None
    ) -> AsyncGenerator[GenerateChunk, None]:
        request_id = request_id or new_request_id()
        omni_request = to_omni_request(request)
        watch = None if self.observer is None else self.observer.begin(request, request_id)
        deadline = None if request.timeout is None else asyncio.get_running_loop().time() + request.timeout
        stream = self.coordinator.stream(request_id, omni_request) if request.stream else None
        parts = _Parts(request_id)
        try:
            while True:
                message = await _before(
                    deadline,
                    anext(stream, _END) if stream else self.coordinator.submit(request_id, omni_request),
                )
                if stream is not None and isinstance(message, StreamMessage):
                    if self.must_answer:
                        check_fields(message.chunk, stage=message.from_stage)
                    chunk = parts.chunk(message)
                    if watch is not None:
                        watch.chunk(chunk)
                    yield chunk
                    continue
                if message is _END:
                    if parts.told:
                        chunk = parts.whole(parts.finish_reason or "stop")
                        if watch is not None:
                            watch.chunk(chunk)
                        yield chunk
                    return
                result, stage = (message, self._only_terminal) if stream is None else _outcome(message)
                if self.must_answer:
                    check_answer(request.task, result, parts.told, stage=stage)
                chunk = result_chunk(request_id, result, parts.finish_reason or "stop")
                chunk.usage = chunk.usage or parts.usage
                if request.timings:
                    chunk.timings = await self._timings(request_id, request.owner)
                if watch is not None:
                    watch.chunk(chunk)
                yield chunk
                return
        except _Aborted:
            chunk = parts.whole("abort")
            if watch is not None:
                watch.chunk(chunk)
            yield chunk
        except _Duplicate as exc:
            raise RequestError(str(exc), param="request_id", code="duplicate_request_id", status=409) from exc
        except _Expired:
            raise TimeoutError(f"request {request_id!r} took longer than {request.timeout:g} s") from None
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            if watch is not None:
                watch.end(sys.exception())

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        return bool(await self.coordinator.abort(request_id, **_owned(owner)))  # type: ignore[attr-defined]

    def health(self) -> dict[str, Any]:
        return dict(self.coordinator.health())  # type: ignore[attr-defined]

    @property
    def _only_terminal(self) -> str | None:
        """The stage that a bare result is from; None if it may be from one of several."""
        terminals = getattr(self.coordinator, "terminal_stages", ())
        return next(iter(terminals)) if len(terminals) == 1 else None

    async def _timings(self, request_id: str, owner: str | None) -> dict[str, StageTime] | None:
        timings = getattr(self.coordinator, "timings", None)
        if timings is None:
            return None
        await asyncio.sleep(_TIMINGS_LAG_S)
        return dict(timings(request_id, **_owned(owner)))


def _outcome(message: CompleteMessage) -> tuple[Any, str | None]:
    """A request's result, and the stage that it is from; None if it is merged from several."""
    return message.result, None if message.from_stage == _MERGED else message.from_stage


def _owned(owner: str | None) -> dict[str, str]:
    """The keyword argument ``owner``, left out if there is none: not every coordinator knows owners."""
    return {} if owner is None else {"owner": owner}


class _Aborted(Exception):
    """The request was aborted by another call."""


class _Duplicate(Exception):
    """The id is that of a running request."""


class _Expired(Exception):
    """The request's own timeout is over."""


async def _before(deadline: float | None, step: Awaitable[Any]) -> Any:
    """Awaits one step of a coordinator and tells its failures apart.

    The deadline guards each step, not the whole iteration: several tasks may drive a generator in turn, and a
    timeout belongs to one task.
    """
    timeout = asyncio.timeout_at(deadline)
    try:
        async with timeout:
            return await step
    except TimeoutError:
        if timeout.expired():
            raise _Expired from None
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _Aborted from None
    except RequestError:
        raise
    except ValueError as exc:  # DuplicateRequest is one; other coordinators may raise another
        raise _Duplicate(str(exc)) from exc


class _Parts:
    """Converts stream messages to chunks, and collects them for a request that ends without a result.

    A stage's finish reason is held back for the whole result, which it marks.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        # The fields that the chunks had.
        self.told: set[str] = set()
        self.text = ""
        self.reasoning = ""
        self.tool_calls: list[ToolCall] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.usage: UsageInfo | None = None

    def chunk(self, message: StreamMessage) -> GenerateChunk:
        chunk = read_chunk(self.request_id, message.chunk)
        chunk.stage_name = message.stage_name or message.from_stage
        if message.modality:
            chunk.modality = message.modality
        self.told |= message.chunk.keys() if isinstance(message.chunk, dict) else _TEXT
        self.text += chunk.text
        self.reasoning += chunk.reasoning
        self.logprobs += chunk.logprobs
        join_tool_calls(self.tool_calls, chunk.tool_calls)
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.usage = chunk.usage or self.usage
        chunk.finish_reason = None
        return chunk

    def whole(self, finish_reason: str) -> GenerateChunk:
        return GenerateChunk(
            self.request_id,
            text=self.text,
            finish_reason=finish_reason,
            usage=self.usage,
            reasoning=self.reasoning,
            tool_calls=self.tool_calls,
            logprobs=self.logprobs,
        )


def to_omni_request(request: GenerateRequest) -> OmniRequest:
    """The request as stages read it; exactly one of its inputs must be set."""
    task = request.task
    metadata = {"task": task, **request.metadata}
    if request.model:
        metadata.setdefault("model", request.model)
    if request.output_modalities is not None:
        metadata["output_modalities"] = list(request.output_modalities)
    else:
        metadata.setdefault("output_modalities", ["audio"] if task == "speech" else ["text"])
    if request.timeout is not None:
        metadata["timeout"] = request.timeout
    if request.session_id is not None:
        metadata["session_id"] = request.session_id
    if request.owner is not None:
        metadata["owner"] = request.owner
    return OmniRequest(inputs=_inputs(request, task), params=_params(request), metadata=metadata)


def _inputs(
    request: GenerateRequest, task: str
) -> ChatInputs | CompletionInputs | SpeechInputs | TranscriptionInputs | dict[str, Any]:
    if isinstance(request.prompt, dict):
        return dict(request.prompt)
    if request.prompt is not None:
        if task == "speech":
            return SpeechInputs(text=request.prompt)
        return CompletionInputs(prompt=request.prompt)
    if request.prompt_token_ids is not None:
        return CompletionInputs(prompt_token_ids=list(request.prompt_token_ids))
    if request.audio is not None:
        return TranscriptionInputs(audio=request.audio)
    return ChatInputs(messages=request.message_dicts)


def _params(request: GenerateRequest) -> dict[str, Any]:
    params = request.sampling.to_dict()
    if request.max_tokens is not None:
        params["max_new_tokens"] = request.max_tokens
    stages: dict[str, dict[str, Any]] = {
        stage: sampling.to_dict() for stage, sampling in (request.stage_sampling or {}).items()
    }
    for stage, own in (request.stage_params or {}).items():
        stages[stage] = {**stages.get(stage, {}), **own}
    if stages:
        params["stage_params"] = stages
    params["stream"] = request.stream
    if request.tools:
        params["tools"] = request.tools
        params["parallel_tool_calls"] = request.parallel_tool_calls
    if request.tool_choice is not None:
        params["tool_choice"] = request.tool_choice
    return {**params, **request.extra_params}
