"""The main process's end of an API worker: does for the worker's requests what is the whole server's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from sglang_omni.generation.fields import UsageInfo
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.proto import OmniRequest, StageTime, StreamMessage, Unavailable, codec
from sglang_omni.serve.front.admission import Permit
from sglang_omni.serve.front.request_ids import HttpAnswer, RequestName
from sglang_omni.serve.observe.history import Generation
from sglang_omni.serve.state import AppState
from sglang_omni.serve.workers.failures import fields_of
from sglang_omni.serve.workers.forwarding import ForwardedRequests
from sglang_omni.serve.workers.link import WorkerLink

logger = logging.getLogger(__name__)

# Bytes that a worker may leave untaken before the streams that add to them fail.
_MOST_UNSENT = 256 * 2**20
_COUNTS = frozenset(
    {
        *("request_begins", "request_done", "queued", "client_cut", "first_output", "first_token"),
        *("next_tokens", "generation_done", "heard", "finished"),
    }
)
# What a worker has lost with its life counts as what a client's leaving ends.
_LOST = "abort"


class WorkerPeer:
    """Answers what the parts of ``stand_ins.py`` ask in one worker.

    Args:
        server: What all of the server's processes share.
        app: Serves the requests that the worker does not.
        coordinator: Runs the worker's requests.
        link: To the worker.
    """

    def __init__(self, server: AppState, app: ASGIApp, coordinator: Coordinator, link: WorkerLink) -> None:
        self._server = server
        self._coordinator = coordinator
        self._link = link
        self._forwarded = ForwardedRequests(app, link)
        self._chunks = WorkerChunks(link)
        # What the worker holds: permits, names of requests and requests in the pipeline by its numbers for
        # them, bytes of bodies, and requests that it answers.
        self._permits: dict[int, Permit] = {}
        self._names: dict[int, RequestName] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._generations: dict[int, Generation] = {}
        self._body_bytes = 0
        self._in_flight = 0
        link.serve(
            {
                "check": server.admission.check,
                "hold_bytes": self._hold_bytes,
                "release_bytes": self._release_bytes,
                "acquire": self._acquire,
                "release": self._release,
                "widen": self._widen,
                "admit": self._admit,
                "split": self._split,
                "rename_parts": self._rename_parts,
                "leave": self._leave,
                "count": self._count,
                "began": self._began,
                "first_token": self._first_token,
                "over": self._over,
                "submit": self._submit,
                "withdraw": self._withdraw,
                "timings": self._timings,
            }
        )

    def close(self) -> None:
        """The worker is gone: give back what it held, and abort what it asked for."""
        for task in self._running.values():
            task.cancel()
        for permit in self._permits.values():
            self._server.admission.release(permit)
        self._server.admission.release_bytes(self._body_bytes)
        for name in self._names.values():
            self._server.running.leave(name)
        self._server.metrics.requests_lost(self._in_flight)
        now = time.monotonic()
        for number, generation in list(self._generations.items()):
            self._over(number, now, _LOST, None)
            self._server.metrics.generation_done(_LOST, now - generation.arrived, None)

    # --- admission --------------------------------------------------------------------------------

    async def _hold_bytes(self, more: int) -> None:
        await self._server.admission.hold_bytes(more)
        self._body_bytes += more

    def _release_bytes(self, held: int) -> None:
        self._server.admission.release_bytes(held)
        self._body_bytes -= held

    async def _acquire(self, number: int) -> None:
        admission = self._server.admission
        if admission.closed is not None:
            raise Unavailable(admission.closed)
        # A client that leaves has the worker cancel this.
        permit = await admission.acquire(asyncio.Event().wait)
        assert permit is not None
        self._permits[number] = permit

    def _release(self, number: int) -> None:
        if (permit := self._permits.pop(number, None)) is not None:
            self._server.admission.release(permit)

    def _widen(self, number: int, parts: int) -> None:
        self._server.admission.widen(self._permits[number], parts)

    # --- ids --------------------------------------------------------------------------------------

    async def _admit(
        self, number: int, called: str, owner: str | None, arrived: float, chosen: str | None
    ) -> str:
        name = RequestName(called, called, owner=owner, arrived=arrived)
        request_id = await self._server.running.admit(name, chosen)
        self._names[number] = name
        return request_id

    async def _split(self, number: int, count: int) -> Sequence[str]:
        return await self._server.running.split(self._names[number], count)

    async def _rename_parts(self, number: int, parts: Sequence[str]) -> Sequence[str]:
        return await self._server.running.rename_parts(self._names[number], parts)

    def _leave(self, number: int, answer: HttpAnswer | None) -> None:
        if (name := self._names.pop(number, None)) is not None:
            name.answer = answer
            self._server.running.leave(name)

    # --- metrics and history ----------------------------------------------------------------------

    def _count(self, method: str, values: tuple[Any, ...]) -> None:
        self._in_flight += (method == "request_begins") - (method == "request_done")
        assert method in _COUNTS
        getattr(self._server.metrics, method)(*values)

    def _began(
        self,
        number: int,
        request_id: str,
        owner: str | None,
        task: str,
        model: str | None,
        parameters: dict[str, float | None],
        began: float,
    ) -> None:
        name = self._server.running.name_of(request_id, owner)
        generation = Generation(
            request_id=request_id,
            owner=owner,
            task=task,
            model=model,
            parameters=parameters,
            name=name,
            arrived=began if name is None else name.arrived,
            began=began,
        )
        self._generations[number] = generation
        self._server.history.remember(generation)

    def _first_token(self, number: int, moment: float) -> None:
        self._generations[number].first_token = moment

    def _over(self, number: int, ended: float, reason: str, usage: UsageInfo | None) -> None:
        generation = self._generations.pop(number)
        generation.ended, generation.finish_reason, generation.usage = ended, reason, usage

    # --- requests in the pipeline -----------------------------------------------------------------

    def _submit(self, number: int, request_id: str, packed: bytes, streams: bool) -> None:
        request: OmniRequest = codec.unpack(packed, trusted=True)
        task = asyncio.ensure_future(self._run(number, request_id, request, streams=streams))
        self._running[number] = task
        task.add_done_callback(lambda _: self._running.pop(number, None))

    def _withdraw(self, number: int) -> None:
        if (task := self._running.get(number)) is not None:
            task.cancel()

    async def _run(self, number: int, request_id: str, request: OmniRequest, *, streams: bool) -> None:
        take = partial(self._chunks.add, number) if streams else None
        try:
            answer = await self._coordinator.answer(request_id, request, take)
            # Those before it, if any are left.
            self._chunks.post()
            self._link.post("result", number, answer.from_stage, answer.result)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The request was aborted by another call.
            self._chunks.post()
            self._link.post("aborted", number)
        except Exception as exc:  # noqa: BLE001  the worker answers its client with it
            self._chunks.post()
            self._link.post("failed", number, fields_of(exc))

    async def _timings(self, request_id: str, owner: str | None) -> dict[str, StageTime]:
        return self._coordinator.timings(request_id, owner=owner)


class WorkerChunks:
    """The chunks of a worker's requests: what comes in one turn of the event loop leaves as one message."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._has_room = True
        # By the names of their stage, in order.
        self._groups: list[tuple[tuple[str, str | None], list[tuple[int, Any, str | None, int | None]]]] = []

    def add(self, number: int, message: StreamMessage) -> bool:
        """False if the worker is too far behind."""
        groups = self._groups
        stage = message.from_stage, message.stage_name
        if not groups:
            self._link.at_end_of_turn(self.post)
        if not groups or groups[-1][0] != stage:
            groups.append((stage, []))
        groups[-1][1].append((number, message.chunk, message.modality, message.chunk_id))
        return self._has_room

    def post(self) -> None:
        groups, self._groups = self._groups, []
        for stage, chunks in groups:
            try:
                self._link.post("chunks", *stage, chunks)
            except (TypeError, ValueError):
                self._post_singly(stage, chunks)
        self._has_room = self._link.unsent <= _MOST_UNSENT

    def _post_singly(
        self, stage: tuple[str, str | None], chunks: list[tuple[int, Any, str | None, int | None]]
    ) -> None:
        """A chunk that cannot be encoded fails its own request."""
        for chunk in chunks:
            try:
                self._link.post("chunks", *stage, [chunk])
            except (TypeError, ValueError) as exc:
                error = RuntimeError(f"stage {stage[0]!r}: a chunk cannot be sent to its caller: {exc}")
                self._link.post("failed", chunk[0], fields_of(error))
