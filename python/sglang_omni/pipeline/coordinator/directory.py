"""The endpoints of all stage instances, as the coordinator sends to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping

from sglang_omni.pipeline.transport.control_plane import ControlPlaneClosed, CoordinatorControlPlane
from sglang_omni.pipeline.transport.ipc.address import is_on_this_host
from sglang_omni.proto import EndpointsMessage, Message

logger = logging.getLogger(__name__)


class StageDirectory:
    """Knows the endpoint of each registered instance, and sends messages to one or to all.

    Args:
        control_plane: The coordinator's.
    """

    def __init__(self, control_plane: CoordinatorControlPlane) -> None:
        self._control_plane = control_plane
        # Empty while an instance's endpoint is not known yet.
        self._endpoints: dict[str, str] = {}
        self._tcp_endpoints: dict[str, str] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def __contains__(self, instance: str) -> bool:
        return instance in self._endpoints

    def __iter__(self) -> Iterator[str]:
        return iter(self._endpoints)

    def add(self, instance: str, endpoint: str) -> None:
        """Adds an instance; its endpoint is empty if ``move`` will give it."""
        self._endpoints[instance] = endpoint

    def remove(self, instance: str) -> None:
        """Forgets an instance, which need not be known."""
        self._endpoints.pop(instance, None)
        self._tcp_endpoints.pop(instance, None)

    def move(self, endpoints: Mapping[str, str]) -> None:
        """Takes the new endpoints of instances on other hosts, and sends all of those to every stage.

        An instance that was added with an ``ipc://`` endpoint keeps it. Call this whenever processes have
        become ready, before requests may reach them: a restarted process needs the endpoints too.
        """
        self._tcp_endpoints.update(endpoints)
        for instance, endpoint in endpoints.items():
            if not is_on_this_host(self._endpoints.get(instance, "")):
                self._endpoints[instance] = endpoint
                self._control_plane.move(instance, endpoint)
        if self._tcp_endpoints:
            message = EndpointsMessage(dict(self._tcp_endpoints))
            # One task each: an instance whose queue is full does not delay the others.
            for instance, endpoint in self._reachable():
                sending = asyncio.get_running_loop().create_task(
                    self._control_plane.send_to_stage(instance, endpoint, message),
                    name=f"send endpoints to {instance}",
                )
                self._sending.add(sending)
                sending.add_done_callback(self._sent)

    async def send(self, instance: str, message: Message) -> None:
        """Sends to one instance. Raises KeyError if it is not known."""
        await self._control_plane.send_to_stage(instance, self._endpoints[instance], message)

    async def broadcast(self, message: Message, instances: Collection[str] | None = None) -> None:
        """Sends to these instances, or to all, except those whose endpoint is not known yet."""
        for instance, endpoint in self._reachable():
            if instances is None or instance in instances:
                await self._control_plane.send_to_stage(instance, endpoint, message)

    def _reachable(self) -> list[tuple[str, str]]:
        return [(instance, endpoint) for instance, endpoint in self._endpoints.items() if endpoint]

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        error = None if sending.cancelled() else sending.exception()
        if error is not None and not isinstance(error, ControlPlaneClosed):
            logger.error("Could not %s", sending.get_name(), exc_info=error)
