"""Where the coordinator reaches the instances of the stages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping

from sglang_omni.pipeline.transport.control_plane import ControlPlaneClosed, CoordinatorControlPlane
from sglang_omni.proto import EndpointsMessage, Message

logger = logging.getLogger(__name__)


class StageDirectory:
    """The endpoints of all instances that are registered, and what is sent to them.

    Args:
        control_plane: The coordinator's.
    """

    def __init__(self, control_plane: CoordinatorControlPlane) -> None:
        self._control_plane = control_plane
        self._endpoints: dict[str, str] = {}
        self._tcp_endpoints: dict[str, str] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def __contains__(self, instance: str) -> bool:
        return instance in self._endpoints

    def __iter__(self) -> Iterator[str]:
        return iter(self._endpoints)

    def add(self, instance: str, endpoint: str) -> None:
        """``endpoint`` is empty where ``move`` is to tell it."""
        self._endpoints[instance] = endpoint

    def remove(self, instance: str) -> None:
        """Forgets it; one that is not known, too."""
        self._endpoints.pop(instance, None)
        self._tcp_endpoints.pop(instance, None)

    def move(self, endpoints: Mapping[str, str]) -> None:
        """Takes where instances on other hosts receive now, and tells every stage of all of these.

        An instance that was added with an ``ipc://`` endpoint keeps it. To be called whenever processes have
        become ready, and before requests may reach them: who was restarted has to be told too.
        """
        self._tcp_endpoints.update(endpoints)
        for instance, endpoint in endpoints.items():
            if not self._endpoints.get(instance, "").startswith("ipc://"):
                self._endpoints[instance] = endpoint
                self._control_plane.move(instance, endpoint)
        if self._tcp_endpoints:
            message = EndpointsMessage(dict(self._tcp_endpoints))
            # Apart from each other: one whose queue is full holds up nobody else.
            for instance, endpoint in self._reachable():
                telling = asyncio.get_running_loop().create_task(
                    self._control_plane.send_to_stage(instance, endpoint, message),
                    name=f"tell {instance} endpoints",
                )
                self._telling.add(telling)
                telling.add_done_callback(self._told)

    async def send(self, instance: str, message: Message) -> None:
        """To one of them. Raises KeyError where it is not known."""
        await self._control_plane.send_to_stage(instance, self._endpoints[instance], message)

    async def tell(self, message: Message, instances: Collection[str] | None = None) -> None:
        """To these, or to all; but for those whose endpoint is not known yet."""
        for instance, endpoint in self._reachable():
            if instances is None or instance in instances:
                await self._control_plane.send_to_stage(instance, endpoint, message)

    def _reachable(self) -> list[tuple[str, str]]:
        return [(instance, endpoint) for instance, endpoint in self._endpoints.items() if endpoint]

    def _told(self, telling: asyncio.Task[None]) -> None:
        self._telling.discard(telling)
        error = None if telling.cancelled() else telling.exception()
        if error is not None and not isinstance(error, ControlPlaneClosed):
            logger.error("Could not %s", telling.get_name(), exc_info=error)
