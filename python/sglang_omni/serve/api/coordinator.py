"""The coordinator behind a client, for the routes that report load and flush caches."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol, runtime_checkable

from sglang_omni.client import Client, RequestError


@runtime_checkable
class AdminCoordinator(Protocol):
    """What those routes ask of a coordinator; ``Coordinator`` has it all."""

    def get_load(self) -> dict[str, int]: ...

    def stage_load(self) -> dict[str, int]: ...

    def stage_stats(self) -> dict[str, dict[str, float]]: ...

    async def flush_cache(self) -> None: ...


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

    async def flush_cache(self) -> None:
        flush = getattr(self._coordinator, "flush_cache", None)
        if flush is None:
            raise RequestError("this pipeline has no cache to flush", code="not_supported", status=404)
        await flush()

    def _read(self, method: str) -> dict[str, Any]:
        return dict(getattr(self._coordinator, method, dict)())


class _RemoteCoordinator:
    """That of a client over HTTP: only its own server can ask it."""

    def get_load(self) -> NoReturn:
        raise NotImplementedError("load is known only to a client over a coordinator; see /get_load")

    stage_load = stage_stats = get_load

    async def flush_cache(self) -> NoReturn:
        raise NotImplementedError("caches are flushed only by a client over a coordinator; see /flush_cache")
