"""Where a stage's output goes: routing, projection, and one lane for each target."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from sglang_omni.config.instances import instance_name, stage_of
from sglang_omni.pipeline.stage.edges import relay_io
from sglang_omni.pipeline.stage.edges.endpoints import TargetEndpoints
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.pipeline.stage.edges.isolation import has_own_container
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.stage.edges.queue import Lane
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.edges.routing import checked_targets
from sglang_omni.pipeline.stage.progress import ProgressReporter
from sglang_omni.pipeline.stage.requests import RequestRecord, RequestTable
from sglang_omni.proto import (
    CompleteMessage,
    DataReadyMessage,
    Message,
    ProgressMessage,
    Replicas,
    StagePayload,
    StatsMessage,
    StreamMessage,
)
from sglang_omni.relay.base import Relay, RelayOperation
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.work_clock import WorkClock

GetNextFn = Callable[[str, Any], str | list[str] | None]
GetStreamDoneTargetsFn = Callable[[str, Any], str | list[str] | None]
ProjectFn = Callable[[StagePayload], StagePayload]

COORDINATOR = "coordinator"


class StageLink(Protocol):
    """What a stage needs of its control plane.

    ``tcp_endpoint``, ``move`` and ``on_lost`` where other hosts can be reached, ``send_progress`` where
    liveness is to be tracked, ``send_stats`` where numbers are to be shown.
    """

    recv_endpoint: str

    async def start(self) -> None: ...
    async def recv(self) -> Message: ...
    async def recv_abort(self) -> Any: ...
    async def send_to_stage(self, target: str, endpoint: str, message: Any, /) -> None: ...
    async def send_complete(self, message: CompleteMessage, /) -> None: ...
    async def send_stream(self, message: StreamMessage, /) -> None: ...
    def close(self) -> None: ...


class Outgoing:
    """Routes what the scheduler emits and sends it, in order on each edge.

    Hooks of the configuration speak of stages. Each target is turned at once into the instance of it that
    serves the request; edges lead to instances.

    Args:
        name: The sending instance.
        fail: ``fail(request_id, text)``, called where sending failed.
        on_sent: Called when a message has left that had to wait.
        clock: The scheduler's, if it has one.
        The others are those of ``Stage``.
    """

    def __init__(
        self,
        name: str,
        *,
        control_plane: StageLink,
        relays: EdgeRelays,
        get_next: GetNextFn,
        endpoints: Mapping[str, str],
        project_payload: Mapping[str, ProjectFn],
        stream_targets: Collection[str],
        get_stream_done_targets: GetStreamDoneTargetsFn | None,
        same_gpu_targets: Collection[str],
        same_process_targets: Collection[str],
        local_dispatcher: LocalStageDispatcher | None,
        fail: Callable[[str, str], None],
        on_sent: Callable[[], None],
        clock: WorkClock | None = None,
    ) -> None:
        self._name = name
        self._stage = stage_of(name)
        self._control_plane = control_plane
        self._relays = relays
        self._get_next = get_next
        self._endpoints = TargetEndpoints(endpoints)
        self._project_payload = project_payload
        self._stream_targets = list(stream_targets)
        self._get_stream_done_targets = get_stream_done_targets
        self._same_gpu_targets = set(same_gpu_targets)
        self._same_process_targets = set(same_process_targets) if local_dispatcher is not None else set()
        self._dispatcher = local_dispatcher
        self._fail = fail
        self._on_sent = on_sent
        self._topology = {stage_of(target) for target in (*endpoints, *same_process_targets)}
        self._lanes: dict[str, Lane] = {}
        self._to_coordinator = Lane(f"{name}->{COORDINATOR}", on_sent)
        self._puts: set[asyncio.Task[None]] = set()
        self._send_progress = getattr(control_plane, "send_progress", None)
        self._send_stats = getattr(control_plane, "send_stats", None)
        self._move = getattr(control_plane, "move", None)
        self.progress = ProgressReporter(name, self._report)
        self.requests = RequestTable(self.progress, clock, self._after_sent)

    @property
    def backlog(self) -> int:
        """Messages routed and not yet sent."""
        return len(self._to_coordinator) + sum(len(lane) for lane in self._lanes.values())

    def result(self, request_id: str, output: Any) -> None:
        """Sends a result on to the next stages, or to the coordinator, and the end of its streams.

        Raises:
            ValueError: The route leaves the static topology.
            TypeError: The output cannot go to another stage.
            Exception: What a hook of the stage's configuration raised.
        """
        record = self.requests.active[request_id]
        replicas = record.replicas
        returned = self._get_next(request_id, output)
        ended = _instances(self._ended_streams(request_id, output), replicas)
        payloads: list[tuple[str, StagePayload, bool]] = []
        if returned is not None:
            targets = checked_targets(returned, self._topology, stage=self._stage, hook="get_next")
            payloads = self._payloads(output, targets, replicas)
        for target in ended:
            self._open_stream(request_id, record, target)
            self._lane(target).put(request_id, self._send_done, request_id, target, replicas)
        shared = self._shared([(target, payload) for target, payload, is_local in payloads if not is_local])
        for target, payload, is_local in payloads:
            self.progress.handed_on(request_id, target)
            if is_local:
                self._lane(target).put(request_id, self._hand_over, request_id, target, payload, replicas)
            else:
                written = shared.get(target, payload)
                self._lane(target).put(request_id, self._send_payload, request_id, target, written, replicas)
        if self.requests.active.get(request_id) is not record:
            return  # A send began at once and failed, which has ended the request.
        if returned is None:
            self.progress.handed_on(request_id, None)
        record.running -= 1
        if record.running <= 0:
            self.requests.finish(request_id)
        if returned is None:
            result = output.data if isinstance(output, StagePayload) else output
            self.complete(CompleteMessage(request_id, self._name, success=True, result=result))

    def stream(self, request_id: str, out: OutgoingMessage) -> None:
        """Sends a chunk to its target, to all stream targets, or to the caller.

        Raises ValueError for a target that is not one of the stage's stream targets.
        """
        record = self.requests.active[request_id]
        if out.target is None:
            targets = self._stream_targets or [COORDINATOR]
        elif out.target == COORDINATOR or out.target in self._stream_targets:
            targets = [out.target]
        else:
            raise ValueError(
                f"stream target {out.target!r} is outside the static topology: stream_to is "
                f"{self._stream_targets}"
            )
        replicas = record.replicas
        targets = _instances(targets, replicas)
        remote = [t for t in targets if t != COORDINATOR and t not in self._same_process_targets]
        shared = self._shared([(target, out.data) for target in remote])
        for target in targets:
            if target == COORDINATOR:
                chunk_id = record.chunks_sent.get(None, 0)
                record.chunks_sent[None] = chunk_id + 1
                message = self._stream_message(out, chunk_id)
                self._to_coordinator.put(request_id, self._send_stream, message)
            else:
                self._open_stream(request_id, record, target)
                chunk_id = record.chunks_sent[target]
                record.chunks_sent[target] = chunk_id + 1
                args = (request_id, target, chunk_id, out.data, out.metadata, shared.get(target), replicas)
                self._lane(target).put(request_id, self._send_chunk, *args)

    def stats(self, message: StatsMessage) -> None:
        """Tells the coordinator the stage's numbers."""
        if self._send_stats is not None:
            self._to_coordinator.put("", self._send_stats, message)

    def complete(self, message: CompleteMessage) -> None:
        self._to_coordinator.put(message.request_id, self._send_complete, message)

    def move(self, endpoints: Mapping[str, str]) -> None:
        """Sends to where instances of stages on other hosts receive now."""
        for target, endpoint in self._endpoints.update(endpoints).items():
            if self._move is not None:
                self._move(target, endpoint)

    async def drain(self) -> None:
        """Returns once all that was routed is sent."""
        self.progress.flush()
        for lane in (*self._lanes.values(), self._to_coordinator):
            await lane.drain()

    async def close(self) -> None:
        for lane in (*self._lanes.values(), self._to_coordinator):
            await lane.close()
        for task in self._puts:
            task.cancel()

    # --- routing ----------------------------------------------------------------------------------

    def _ended_streams(self, request_id: str, output: Any) -> list[str]:
        if self._get_stream_done_targets is None:
            return self._stream_targets
        returned = self._get_stream_done_targets(request_id, output)
        if returned is None:
            return []
        return checked_targets(
            returned, self._stream_targets, stage=self._stage, hook="stream_done_to_fn", empty_ok=True
        )

    def _payloads(
        self, output: Any, targets: list[str], replicas: Replicas
    ) -> list[tuple[str, StagePayload, bool]]:
        """``(instance, payload, whether to hand over the object itself)`` for each target."""
        projected = []
        for target in targets:
            project = self._project_payload.get(target)
            payload = project(output) if project is not None else output
            if not isinstance(payload, StagePayload):
                source = "its scheduler" if project is None else "project_payload"
                raise TypeError(
                    f"stage {self._stage!r} cannot send to {target!r}: {source} returned a "
                    f"{type(payload).__name__}, expected a StagePayload"
                )
            projected.append(payload)
        instances = _instances(targets, replicas)
        if not self._same_process_targets:
            return [(target, payload, False) for target, payload in zip(instances, projected, strict=True)]
        return [
            (target, payload, target in self._same_process_targets and self._is_alone(i, projected, output))
            for i, (target, payload) in enumerate(zip(instances, projected, strict=True))
        ]

    def _shared(self, sent: Sequence[tuple[str, Any]]) -> dict[str, FanOut]:
        """By target, what writes an object that others get through the same relay."""
        if len(sent) < 2:
            return {}
        ways = [(id(obj), id(self._relays.to(target))) for target, obj in sent]
        uses = Counter(ways)
        fan_outs = {
            way: FanOut(self._relays.to(target), obj)
            for way, (target, obj) in zip(ways, sent, strict=True)
            if uses[way] > 1
        }
        return {target: fan_outs[way] for way, (target, _) in zip(ways, sent, strict=True) if way in fan_outs}

    @staticmethod
    def _is_alone(index: int, projected: list[StagePayload], output: Any) -> bool:
        """Whether no other target of the fan-out can see what this one does to its payload."""
        if len(projected) == 1:
            return True
        others = [*projected[:index], *projected[index + 1 :], output]
        return projected[index] is not output and has_own_container(projected[index], others)

    def _open_stream(self, request_id: str, record: RequestRecord, target: str) -> None:
        if target not in record.chunks_sent:
            record.chunks_sent[target] = 0
            self.progress.handed_on(request_id, target)

    def _stream_message(self, out: OutgoingMessage, chunk_id: int) -> StreamMessage:
        modality = out.metadata.get("modality") if out.metadata else None
        if modality is None and isinstance(out.data, dict):
            modality = out.data.get("modality")
        return StreamMessage(
            request_id=out.request_id,
            from_stage=self._stage,
            chunk=out.data,
            stage_name=self._stage,
            modality=modality if isinstance(modality, str) else None,
            chunk_id=chunk_id,
        )

    def _lane(self, target: str) -> Lane:
        lane = self._lanes.get(target)
        if lane is None:
            lane = self._lanes[target] = Lane(f"{self._name}->{target}", self._on_sent)
        return lane

    # --- sending, inside the target's lane --------------------------------------------------------

    async def _hand_over(
        self, request_id: str, target: str, payload: StagePayload, replicas: Replicas
    ) -> None:
        if self.requests.is_dropped(request_id):
            return
        assert self._dispatcher is not None
        try:
            await self._dispatcher.send_payload(
                from_stage=self._name,
                to_stage=target,
                request_id=request_id,
                payload=payload,
                replicas=replicas,
            )
        except Exception as exc:  # noqa: BLE001  the edge goes on, the request fails
            self._fail_sending(request_id, target, exc)

    async def _send_payload(
        self,
        request_id: str,
        target: str,
        payload: StagePayload | FanOut,
        replicas: Replicas,
    ) -> None:
        if self.requests.is_dropped(request_id):
            return
        try:
            if isinstance(payload, FanOut):
                metadata, put = await payload.write(request_id, target)
            else:
                metadata, put = await relay_io.write_payload(
                    self._relays.to(target), request_id, payload, target=target
                )
            # The message leaves before the put is waited for: reading is what completes it.
            await self._control_plane.send_to_stage(
                target,
                await self._endpoints.of(target),
                DataReadyMessage(request_id, self._name, target, metadata, replicas=replicas),
            )
            self._watch_put(request_id, target, request_id, put)
        except Exception as exc:  # noqa: BLE001  the edge goes on, the request fails
            self._fail_sending(request_id, target, exc)

    async def _send_chunk(
        self,
        request_id: str,
        target: str,
        chunk_id: int,
        data: Any,
        metadata: dict[str, Any] | None,
        fan_out: FanOut | None,
        replicas: Replicas,
    ) -> None:
        if self.requests.is_dropped(request_id):
            return
        try:
            if target in self._same_process_targets:
                assert self._dispatcher is not None
                await self._dispatcher.send_stream_chunk(
                    from_stage=self._name,
                    to_stage=target,
                    request_id=request_id,
                    chunk_id=chunk_id,
                    data=data,
                    metadata=metadata,
                    replicas=replicas,
                )
                return
            await relay_io.send_stream_chunk(
                self._relays.to(target),
                self._control_plane,
                request_id=request_id,
                data=data,
                target_stage=target,
                target_endpoint=await self._endpoints.of(target),
                from_stage=self._name,
                chunk_id=chunk_id,
                metadata=metadata,
                same_gpu_targets=self._same_gpu_targets,
                fan_out=fan_out,
                replicas=replicas,
                watch=partial(self._watch_put, request_id, target),
            )
        except Exception as exc:  # noqa: BLE001  the edge goes on, the request fails
            self._fail_sending(request_id, target, exc)

    async def _send_done(self, request_id: str, target: str, replicas: Replicas) -> None:
        if self.requests.is_dropped(request_id):
            return
        try:
            if target in self._same_process_targets:
                assert self._dispatcher is not None
                await self._dispatcher.send_stream_signal(
                    from_stage=self._name,
                    to_stage=target,
                    request_id=request_id,
                    is_done=True,
                    replicas=replicas,
                )
                return
            await relay_io.send_stream_signal(
                self._control_plane,
                request_id=request_id,
                target_stage=target,
                target_endpoint=await self._endpoints.of(target),
                from_stage=self._name,
                is_done=True,
                replicas=replicas,
            )
        except Exception as exc:  # noqa: BLE001  the edge goes on, the request fails
            self._fail_sending(request_id, target, exc)

    async def _send_stream(self, message: StreamMessage) -> None:
        if self.requests.is_dropped(message.request_id):
            return
        try:
            await self._control_plane.send_stream(message)
        except (TypeError, ValueError) as exc:
            self._fail_sending(message.request_id, COORDINATOR, exc)

    async def _send_complete(self, message: CompleteMessage) -> None:
        try:
            await self._control_plane.send_complete(message)
        except (TypeError, ValueError) as exc:
            self._fail_sending(message.request_id, COORDINATOR, exc)

    def _after_sent(self, request_id: str, report: Callable[[], None]) -> None:
        # The coordinator waits for no chunk of a request that a stage has reported as finished.
        if self._to_coordinator.is_idle:
            report()
        else:
            self._to_coordinator.put(request_id, self._do, report)

    async def _do(self, report: Callable[[], None]) -> None:
        report()

    def _report(self, message: ProgressMessage) -> None:
        if self._send_progress is not None:
            self._to_coordinator.put("", self._send_progress, message)

    def _fail_sending(self, request_id: str, target: str, exc: Exception) -> None:
        self._fail(request_id, f"sending to {target!r} failed: {type(exc).__name__}: {exc}")

    def _watch_put(self, request_id: str, target: str, key: str, put: RelayOperation) -> None:
        """Waits for a put beside the lane, so that what is not read does not hold up the next.

        A relay that lends its memory gets it back by itself: there is nothing to wait for.
        """
        relay = self._relays.to(target)
        if getattr(relay, "lends", False):
            return
        task = asyncio.get_running_loop().create_task(self._wait_for_put(request_id, target, key, put, relay))
        self._puts.add(task)
        task.add_done_callback(self._puts.discard)

    async def _wait_for_put(
        self, request_id: str, target: str, key: str, put: RelayOperation, relay: Relay
    ) -> None:
        try:
            await put.wait_for_completion()
        except Exception as exc:  # noqa: BLE001  reported as the request's failure
            if not self.requests.is_dropped(request_id):
                self._fail_sending(request_id, target, exc)
            # Ending the request has freed what is under its id, which no chunk is.
            if key != request_id:
                relay.cleanup(key)


def _instances(targets: list[str], replicas: Replicas) -> list[str]:
    """The instance of each target that serves a request with these replicas."""
    if not replicas:
        return targets
    return [instance_name(target, replicas.get(target)) for target in targets]
