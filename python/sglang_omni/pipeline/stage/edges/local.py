"""Hand-over of objects between stages of one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from sglang_omni.proto import Replicas, StagePayload


class LocalReceiver(Protocol):
    """What a stage offers to the other stages of its process."""

    name: str

    async def receive_local_payload(
        self, request_id: str, from_stage: str, payload: StagePayload, replicas: Replicas = None
    ) -> None: ...

    async def receive_local_stream_chunk(
        self,
        request_id: str,
        from_stage: str,
        chunk_id: int,
        data: Any,
        metadata: dict[str, Any] | None,
        replicas: Replicas = None,
    ) -> None: ...

    async def receive_local_stream_signal(
        self,
        request_id: str,
        from_stage: str,
        *,
        is_done: bool = False,
        error: str | None = None,
        replicas: Replicas = None,
    ) -> None: ...


class LocalStageDispatcher:
    """Passes payloads and chunks by reference to the stages registered here.

    Receivers treat what they get as read-only, unless the edge projects a payload of their own. They get
    ``replicas`` with it, which are the request's as in its SubmitMessage.
    """

    def __init__(self) -> None:
        self._stages: dict[str, LocalReceiver] = {}

    def register(self, stage: LocalReceiver) -> None:
        self._stages[stage.name] = stage

    def register_many(self, stages: Iterable[LocalReceiver]) -> None:
        for stage in stages:
            self.register(stage)

    async def send_payload(
        self,
        *,
        from_stage: str,
        to_stage: str,
        request_id: str,
        payload: StagePayload,
        replicas: Replicas = None,
    ) -> None:
        await self._target(from_stage, to_stage).receive_local_payload(
            request_id, from_stage, payload, replicas
        )

    async def send_stream_chunk(
        self,
        *,
        from_stage: str,
        to_stage: str,
        request_id: str,
        chunk_id: int,
        data: Any,
        metadata: dict[str, Any] | None = None,
        replicas: Replicas = None,
    ) -> None:
        await self._target(from_stage, to_stage).receive_local_stream_chunk(
            request_id, from_stage, chunk_id, data, metadata, replicas
        )

    async def send_stream_signal(
        self,
        *,
        from_stage: str,
        to_stage: str,
        request_id: str,
        is_done: bool = False,
        error: str | None = None,
        replicas: Replicas = None,
    ) -> None:
        await self._target(from_stage, to_stage).receive_local_stream_signal(
            request_id, from_stage, is_done=is_done, error=error, replicas=replicas
        )

    def _target(self, from_stage: str, to_stage: str) -> LocalReceiver:
        try:
            return self._stages[to_stage]
        except KeyError:
            raise RuntimeError(
                f"stage {from_stage!r} cannot reach {to_stage!r} inside this process: it is not registered"
            ) from None
