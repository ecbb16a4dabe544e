"""What an API worker's routes find in the place of the parts of a server that only the main process has.

Each asks, or reports to, the original over the link. It has what requests need of the original, and nothing
else: the original's state is not set, so that any other method fails.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.pipeline.coordinator.requests import one_by_one
from sglang_omni.proto import CompleteMessage, OmniRequest, RequestError, StageTime, StreamMessage, codec
from sglang_omni.serve.front.admission import Admission, Permit
from sglang_omni.serve.front.middleware import UNCOUNTED
from sglang_omni.serve.front.request_ids import RequestName, RunningRequests
from sglang_omni.serve.metrics import Metrics, interval_tally
from sglang_omni.serve.observe.history import Generation, History, Watch
from sglang_omni.serve.workers.failures import failure_of
from sglang_omni.serve.workers.link import WorkerLink

# Chunks that wait for the reader of one stream, as in the coordinator.
_MAX_STREAM_BACKLOG = 10_000
# One request's chunk: the number of the answer, the chunk, its modality and its number.
WireChunk = tuple[int, Any, str | None, int | None]


class MainAdmission(Admission):
    """The permits of the whole server."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._numbers = itertools.count()
        self._numbered: dict[Permit, int] = {}

    async def check(self, body_size: int | None) -> None:
        # A small body is there a moment after its head: the refusal of its permit is early enough.
        if body_size is None or body_size > UNCOUNTED:
            await self._link.call("check", body_size)

    async def hold_bytes(self, more: int) -> None:
        if more:
            await self._link.call("hold_bytes", more)

    def release_bytes(self, held: int) -> None:
        if held:
            self._link.post("release_bytes", held)

    async def acquire(self, leaving: Callable[[], Awaitable[Any]]) -> Permit | None:
        number, permit = next(self._numbers), Permit()
        asking = asyncio.ensure_future(self._link.call("acquire", number))
        left = asyncio.ensure_future(leaving())
        try:
            await asyncio.wait({asking, left}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
                self._numbered[permit] = number
                return permit
            left.result()
            return None
        finally:
            left.cancel()
            if permit not in self._numbered:
                # The permit may be on its way.
                asking.cancel()
                self._link.post("release", number)

    def release(self, permit: Permit) -> None:
        self._link.post("release", self._numbered.pop(permit))

    def widen(self, permit: Permit, parts: int) -> None:
        self._link.post("widen", self._numbered[permit], parts)


class MainRequests(RunningRequests):
    """The ids of the whole server's requests. The names of this worker's own are known here."""

    def __init__(self, link: WorkerLink) -> None:
        super().__init__()
        self._link = link
        self._numbers = itertools.count()
        self._numbered: dict[RequestName, int] = {}

    async def admit(self, name: RequestName, chosen: str | None) -> str:
        number = self._numbered[name] = next(self._numbers)
        name.id = await self._link.call("admit", number, name.called, name.owner, name.arrived, chosen)
        name.parts = [name.id]
        self._enter(name)
        return name.id

    async def split(self, name: RequestName, count: int) -> Sequence[str]:
        return await self._with_parts(name, "split", count) if count > 1 else name.parts

    async def rename_parts(self, name: RequestName, parts: Sequence[str]) -> Sequence[str]:
        return await self._with_parts(name, "rename_parts", list(parts))

    def leave(self, name: RequestName) -> None:
        if (number := self._numbered.pop(name, None)) is not None:
            super().leave(name)
            self._link.post("leave", number, name.answer)

    async def _with_parts(self, name: RequestName, how: str, value: Any) -> Sequence[str]:
        parts = await self._link.call(how, self._numbered[name], value)
        super().leave(name)
        name.parts = parts
        self._enter(name)
        return name.parts


class MainMetrics(Metrics):
    """The metrics of the whole server. What is counted for each token is counted here, and sent at the end of
    each answer."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._between_tokens = interval_tally()
        self.request_begins = partial(self._count, "request_begins")
        self.queued = partial(self._count, "queued")

    def request_done(self, path: str, status: int, seconds: float, tenant: str | None = None) -> None:
        self._count("request_done", path, status, seconds, tenant)

    def client_cut(self) -> None:
        self._count("client_cut")

    def first_output(self, seconds: float) -> None:
        self._count("first_output", seconds)

    def first_token(self, seconds: float) -> None:
        self._count("first_token", seconds)

    def next_token(self, seconds: float) -> None:
        self._between_tokens.observe(seconds)

    def generation_done(self, finish_reason: str, seconds: float, usage: UsageInfo | None) -> None:
        if (intervals := self._between_tokens.take()) is not None:
            self._count("next_tokens", *intervals)
        self._count("generation_done", finish_reason, seconds, usage)

    def heard(self, first_sound: float, underrun_s: float, real_time_factor: float) -> None:
        self._count("heard", first_sound, underrun_s, real_time_factor)

    def finished(self, usage: UsageInfo | None) -> None:
        if usage is not None:
            self._count("finished", usage)

    def _count(self, method: str, *values: Any) -> None:
        self._link.post("count", method, values)


class MainHistory(History):
    """The latest requests of the whole server. This worker's own are remembered here, too."""

    def __init__(self, metrics: MainMetrics, running: MainRequests, link: WorkerLink) -> None:
        super().__init__(metrics, running)
        self._link = link
        self._numbers = itertools.count()

    def begin(self, request: GenerateRequest, request_id: str) -> Watch | None:
        watch = super().begin(request, request_id)
        if watch is None:
            return None
        new, number = watch.generation, next(self._numbers)
        self._link.post(
            *("began", number, request_id, new.owner, new.task, new.model, new.parameters, new.began)
        )
        return _ReportedWatch(new, self._metrics, self._link, number)


class _ReportedWatch(Watch):
    def __init__(self, generation: Generation, metrics: Metrics, link: WorkerLink, number: int) -> None:
        super().__init__(generation, metrics)
        self._link = link
        self._number = number

    def part(self, part: GenerateChunk) -> None:
        is_silent = self.generation.first_token is None
        super().part(part)
        if is_silent and (moment := self.generation.first_token) is not None:
            self._link.post("first_token", self._number, moment)

    def end(self, error: BaseException | None) -> None:
        super().end(error)
        over = self.generation
        self._link.post("over", self._number, over.ended, over.finish_reason, over.usage)


class MainCoordinator:
    """The coordinator in the main process. Its methods are those of ``Coordinator``."""

    def __init__(self, link: WorkerLink, terminal_stages: frozenset[str]) -> None:
        self.terminal_stages = terminal_stages
        self._link = link
        self._numbers = itertools.count()
        self._answers: dict[int, _Answer] = {}
        link.serve(
            {
                "chunks": self._on_chunks,
                "result": self._on_result,
                "failed": self._on_failed,
                "aborted": self._on_aborted,
            }
        )

    async def submit(self, request_id: str, request: OmniRequest) -> Any:
        number, answer = self._begin(request_id, request, streams=False)
        try:
            return (await answer.outcome).result
        finally:
            self._leave(number)

    def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[StreamMessage | CompleteMessage]:
        return one_by_one(self.stream_batches(request_id, request))

    async def stream_batches(
        self, request_id: str, request: OmniRequest
    ) -> AsyncGenerator[list[StreamMessage] | CompleteMessage, None]:
        number, answer = self._begin(request_id, request, streams=True)
        try:
            while answer.chunks or not answer.outcome.done():
                await answer.changed.wait()
                answer.changed.clear()
                batch, answer.chunks = answer.chunks, []
                if batch:
                    yield batch
            yield await answer.outcome
        finally:
            self._leave(number)

    async def timings(self, request_id: str, *, owner: str | None = None) -> dict[str, StageTime]:
        timings: dict[str, StageTime] = await self._link.call("timings", request_id, owner)
        return timings

    def _begin(self, request_id: str, request: OmniRequest, *, streams: bool) -> tuple[int, _Answer]:
        try:
            packed = codec.pack(request)
        except (TypeError, ValueError) as exc:
            raise RequestError(f"the request cannot be sent to stages: {exc}", code="invalid_value") from exc
        number, answer = next(self._numbers), _Answer(request_id)
        self._answers[number] = answer
        self._link.post("submit", number, request_id, packed, streams)
        return number, answer

    def _leave(self, number: int) -> None:
        """Aborts the request if its caller goes before it has ended."""
        outcome = self._answers.pop(number).outcome
        if not outcome.done():
            self._link.post("withdraw", number)
        elif not outcome.cancelled():
            outcome.exception()  # Marks it as retrieved, in case the caller was cancelled meanwhile.

    def _on_chunks(self, from_stage: str, stage_name: str | None, chunks: list[WireChunk]) -> None:
        for number, chunk, modality, chunk_id in chunks:
            # None has left meanwhile.
            if (answer := self._answers.get(number)) is not None and not answer.take(
                StreamMessage(answer.request_id, from_stage, chunk, None, stage_name, modality, chunk_id)
            ):
                self._link.post("withdraw", number)

    def _on_result(self, number: int, from_stage: str, result: Any) -> None:
        if (answer := self._pending(number)) is not None:
            answer.outcome.set_result(CompleteMessage(answer.request_id, from_stage, True, result))

    def _on_failed(self, number: int, fields: dict[str, Any]) -> None:
        if (answer := self._pending(number)) is not None:
            answer.outcome.set_exception(failure_of(fields))

    def _on_aborted(self, number: int) -> None:
        if (answer := self._pending(number)) is not None:
            answer.outcome.cancel()

    def _pending(self, number: int) -> _Answer | None:
        answer = self._answers.get(number)
        return None if answer is None or answer.outcome.done() else answer


class _Answer:
    """What has come of the answer to one request."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.chunks: list[StreamMessage] = []
        self.changed = asyncio.Event()
        self.outcome: asyncio.Future[CompleteMessage] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(lambda _: self.changed.set())

    def take(self, message: StreamMessage) -> bool:
        """Takes a chunk. False if its reader is too far behind, and the request has failed for it now."""
        if self.outcome.done():
            return True
        self.chunks.append(message)
        self.changed.set()
        if len(self.chunks) <= _MAX_STREAM_BACKLOG:
            return True
        self.outcome.set_exception(RuntimeError("the reader of the stream is too far behind"))
        return False
