"""The coordinator behind a client, for the routes that report load and flush caches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from sglang_omni.client import Client
from sglang_omni.generation.answer import Delivered, GenerateChunk
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.generation.transport import Transport
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from sglang_omni.pipeline.coordinator.requests import RequestTrace, StageVisit


@runtime_checkable
class AdminCoordinator(Protocol):
    """What those routes ask of a coordinator; ``Coordinator`` has it all."""

    def get_load(self) -> dict[str, int]: ...

    def stage_load(self) -> dict[str, int]: ...

    def stage_stats(self) -> dict[str, dict[str, float]]: ...

    def held_at(self, request_id: str, *, owner: str | None = None) -> list[str]: ...

    async def flush_cache(self) -> None: ...

    def trace(self, request_id: str, *, owner: str | None = None) -> RequestTrace | None: ...

    def trace_steps(self, on: bool) -> None: ...

    def watch_visits(self, seen: Callable[[StageVisit], None]) -> None: ...

    async def start_profile(
        self, run_id: str, trace_path_template: str, activities: list[str] | None = None
    ) -> None: ...

    async def stop_profile(self, run_id: str | None = None) -> None: ...


def transport_of(client: Client) -> Transport:
    """Where the client's requests are answered; one of another make is asked through its own methods."""
    return client.transport if isinstance(client, Client) else _OtherClient(client)


class _OtherClient(Transport):
    """A client of another make, which has ``generate``, ``abort`` and ``health`` of ``Client``."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def parts(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        delivered = Delivered()
        async with aclosing(self._client.generate(request, request_id)) as chunks:
            async for chunk in chunks:
                part = chunk if chunk.finish_reason is None else delivered.rest_of(chunk)
                delivered.add(part)
                yield part

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        return bool(await self._client.abort(request_id, owner=owner))

    def health(self) -> dict[str, Any]:
        return dict(self._client.health())


def admin_coordinator(client: Client) -> AdminCoordinator:
    """The client's own coordinator, wrapped if it lacks some of these methods.

    A client of another make may have them itself.
    """
    coordinator = client.coordinator if isinstance(client, Client) else client
    if coordinator is None:
        return _RemoteCoordinator()
    return coordinator if isinstance(coordinator, AdminCoordinator) else _PartialCoordinator(coordinator)


class _PartialCoordinator:
    """A coordinator of another make. A client needs only its ``submit`` and ``stream``."""

    def __init__(self, coordinator: object) -> None:
        self._coordinator = coordinator

    def get_load(self) -> dict[str, int]:
        return self._read("get_load")

    def stage_load(self) -> dict[str, int]:
        return self._read("stage_load")

    def stage_stats(self) -> dict[str, dict[str, float]]:
        return self._read("stage_stats")

    def held_at(self, request_id: str, *, owner: str | None = None) -> list[str]:
        return []

    async def flush_cache(self) -> None:
        flush = getattr(self._coordinator, "flush_cache", None)
        if flush is None:
            raise RequestError("this pipeline has no cache to flush", code="not_supported", status=404)
        await flush()

    def trace(self, request_id: str, *, owner: str | None = None) -> RequestTrace | None:
        return None

    def trace_steps(self, on: bool) -> None:
        """It has no steps to tell of."""

    def watch_visits(self, seen: Callable[[StageVisit], None]) -> None:
        """It has no visits to tell of."""

    async def start_profile(
        self, run_id: str, trace_path_template: str, activities: list[str] | None = None
    ) -> None:
        raise RequestError("this pipeline has no torch profiler", code="not_supported", status=404)

    async def stop_profile(self, run_id: str | None = None) -> None:
        """Nothing was started."""

    def _read(self, method: str) -> dict[str, Any]:
        return dict(getattr(self._coordinator, method, dict)())


class _RemoteCoordinator:
    """That of a client over HTTP: only its own server can ask it."""

    def get_load(self) -> NoReturn:
        raise NotImplementedError("load is known only to a client over a coordinator; see /get_load")

    stage_load = stage_stats = get_load

    def held_at(self, request_id: str, *, owner: str | None = None) -> list[str]:
        return []

    def trace(self, request_id: str, *, owner: str | None = None) -> RequestTrace | None:
        return None

    def trace_steps(self, on: bool) -> None:
        """Its own server decides."""

    def watch_visits(self, seen: Callable[[StageVisit], None]) -> None:
        """Its own server counts them."""

    async def start_profile(self, *args: object) -> NoReturn:
        raise NotImplementedError("stages are profiled only by a client over a coordinator")

    stop_profile = start_profile

    async def flush_cache(self) -> NoReturn:
        raise NotImplementedError("caches are flushed only by a client over a coordinator; see /flush_cache")
