"""The transport to a coordinator in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from inspect import isawaitable
from types import TracebackType
from typing import Any, Protocol

from sglang_omni.generation.answer import (
    Delivered,
    GenerateChunk,
    TextJoiner,
    read_chunk,
    read_result,
    token_part,
)
from sglang_omni.generation.checks import check_answer, check_fields
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.request import GenerateRequest, to_omni_request
from sglang_omni.generation.request_id import new_request_id
from sglang_omni.generation.transport import Transport
from sglang_omni.proto import CompleteMessage, OmniRequest, RequestError, StageTime, StreamMessage

# Stages report their times in batches, at most this long after the result.
_TIMINGS_LAG_S = 0.03
# The sender of a result that is merged from several stages.
_MERGED = "coordinator"
_TEXT = {"text"}
_TEXT_OR_NONE = ("text", None)
# Marks a stream that ended without a result.
_END = object()


class CoordinatorLike(Protocol):
    """A coordinator as requests use it. ``abort``, ``health`` and ``timings`` are optional.

    Cancelling ``submit``, or closing the iterator of ``stream``, ends the request that the call began and no
    other request of the same id. A duplicate id is a ``ValueError``. With ``stream_batches``, as
    ``Coordinator`` has it, a caller that is behind reads several chunks at once, and may add to the input of
    a request that runs.
    """

    async def submit(self, request_id: str, request: OmniRequest) -> Any: ...

    def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[Any]: ...


class RequestWatch(Protocol):
    """Follows one request, for metrics and traces."""

    def part(self, part: GenerateChunk) -> None:
        """A part has come; the last one has a ``finish_reason``."""
        ...

    def end(self, error: BaseException | None) -> None:
        """The request is over; ``error`` is what ended it before its last part came."""
        ...


class RequestObserver(Protocol):
    """Sees every request before it is sent."""

    def begin(self, request: GenerateRequest, request_id: str) -> RequestWatch | None:
        """What follows the request; None if it is not to be followed."""
        ...


class LocalTransport(Transport):
    """
    Attributes:
        observer: Sees every request; None: nothing does.
        must_answer: True if a result that is no answer to its request's task is an error. A program may run
            a pipeline for any result; a server's routes cannot.
    """

    def __init__(self, coordinator: CoordinatorLike) -> None:
        self.coordinator = coordinator
        self.observer: RequestObserver | None = None
        self.must_answer = False

    async def parts(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        request_id = request_id or new_request_id()
        omni_request = to_omni_request(request)
        watch = None if self.observer is None else self.observer.begin(request, request_id)
        deadline = None if request.timeout is None else _Deadline(request.timeout)
        stream = self._batches(request_id, omni_request, request) if request.stream else None
        delivered, seen, joiner = Delivered(), set[str](), TextJoiner(request.stream_interval)
        # A stage's finish reason is held back for the last part, which alone has one.
        reason: str | None = None
        usage: UsageInfo | None = None
        try:
            while True:
                if deadline is not None and deadline.is_over:
                    raise _Expired
                if stream is None:
                    message = await _before(deadline, self.coordinator.submit(request_id, omni_request))
                else:
                    message = await _before(deadline, anext(stream, _END))
                is_over = not isinstance(message, list)
                for each in () if is_over else message:
                    part = self._read(request_id, each)
                    seen |= each.chunk.keys() if isinstance(each.chunk, dict) else _TEXT
                    reason, part.finish_reason = part.finish_reason or reason, None
                    usage = part.usage or usage
                    joiner.add(part)
                for part in joiner.take(all_of_them=is_over):
                    delivered.time_words(part)
                    delivered.add(part)
                    if watch is not None:
                        watch.part(part)
                    yield part
                if is_over:
                    break
            if message is _END:
                if delivered.is_empty:
                    return
                last = GenerateChunk(request_id, finish_reason=reason or "stop", usage=usage)
            else:
                result, stage = (message, self._only_terminal) if stream is None else _outcome(message)
                if self.must_answer:
                    check_answer(request.task, result, seen, stage=stage)
                last = delivered.rest_of(read_result(request_id, result, reason or "stop"))
                last.usage = last.usage or usage
                if request.timings:
                    last.timings = await self._timings(request_id, request.owner)
            if watch is not None:
                watch.part(last)
            yield last
        except _Aborted:
            for part in joiner.take(all_of_them=True):
                yield part
            last = GenerateChunk(request_id, finish_reason="abort", usage=usage)
            if watch is not None:
                watch.part(last)
            yield last
        except _Duplicate as exc:
            raise RequestError(str(exc), param="request_id", code="duplicate_request_id", status=409) from exc
        except _Expired:
            raise TimeoutError(f"request {request_id!r} took longer than {request.timeout:g} s") from None
        finally:
            if deadline is not None:
                deadline.cancel()
            if stream is not None:
                await stream.aclose()
            if watch is not None:
                watch.end(sys.exception())

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        return bool(await self.coordinator.abort(request_id, **_owned(owner)))  # type: ignore[attr-defined]

    def health(self) -> dict[str, Any]:
        return dict(self.coordinator.health())  # type: ignore[attr-defined]

    def _batches(
        self, request_id: str, omni_request: OmniRequest, request: GenerateRequest
    ) -> AsyncGenerator[list[StreamMessage] | CompleteMessage, None]:
        batches = getattr(self.coordinator, "stream_batches", None)
        if request.sound is not None:
            if batches is None:
                raise RequestError("this pipeline takes no input while a request runs", code="not_supported")
            return batches(request_id, omni_request, request.sound.chunks)
        if batches is None:
            return _one_by_one(self.coordinator.stream(request_id, omni_request))
        return batches(request_id, omni_request)

    def _read(self, request_id: str, message: StreamMessage) -> GenerateChunk:
        chunk, stage = message.chunk, message.stage_name or message.from_stage
        part = token_part(request_id, chunk, stage)
        if part is not None and message.modality in _TEXT_OR_NONE:
            return part
        if self.must_answer:
            check_fields(chunk, stage=message.from_stage)
        part = read_chunk(request_id, chunk)
        part.stage_name = stage
        if message.modality:
            part.modality = message.modality
        return part

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
        found = timings(request_id, **_owned(owner))
        return dict(await found if isawaitable(found) else found)


async def _one_by_one(
    stream: AsyncIterator[Any],
) -> AsyncGenerator[list[StreamMessage] | CompleteMessage, None]:
    """The messages of a coordinator that hands them over singly."""
    try:
        async for message in stream:
            yield [message] if isinstance(message, StreamMessage) else message
    finally:
        if (close := getattr(stream, "aclose", None)) is not None:
            await close()


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


class _Deadline:
    """Cancels the step that is under way when a request's time is over; ``with`` encloses a step.

    There is one timer for the whole request. A timeout of asyncio belongs to one task, but several tasks may
    drive a generator in turn.

    Args:
        seconds: From now.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        # The task that awaits a step, and how often it had been cancelled before.
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.is_over = True
        if self._task is not None:
            self._task.cancel()

    def cancel(self) -> None:
        """The request is over."""
        self._timer.cancel()

    def __enter__(self) -> None:
        self._task = asyncio.current_task(self._loop)
        self._cancelling = 0 if self._task is None else self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        is_outer = self.is_over and task is not None and task.uncancel() > self._cancelling
        if self.is_over and kind is asyncio.CancelledError and not is_outer:
            raise _Expired from None


async def _before(deadline: _Deadline | None, step: Awaitable[Any]) -> Any:
    """Awaits one step of a coordinator, and tells its failures apart."""
    try:
        if deadline is None:
            return await step
        with deadline:
            return await step
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _Aborted from None
    except RequestError:
        raise
    except ValueError as exc:  # DuplicateRequest is one; other coordinators may raise another
        raise _Duplicate(str(exc)) from exc
