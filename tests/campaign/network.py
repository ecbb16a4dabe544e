"""Sockets of processes that live in one event loop: in order, delayed, and torn when their process is killed.

They stand in for those of ``pipeline/transport``: each message of a sender arrives once, after those before
it. What a killed receiver had in its kernel's buffer is lost, what had not left its sender goes to the
successor, and of a killed sender what its kernel had taken still arrives.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from sglang_omni.pipeline.transport import control_plane
from sglang_omni.pipeline.transport.base import ControlPlaneClosed, Deliver

# The process whose code runs; the coordinator's has no name.
current_process: ContextVar[str] = ContextVar("current_process", default="")

# Messages that a kernel holds for a receiver, and that a sender queues before it waits.
_KERNEL_HOLDS = 8
_SENDER_HOLDS = 64


@dataclass(eq=False)
class Link:
    """The way from one sender to one endpoint.

    Attributes:
        sender, endpoint: The process it belongs to, and where it leads.
        frames: What is under way, with the time at which each is there.
    """

    sender: str
    endpoint: str
    frames: deque[tuple[float, bytes]] = field(default_factory=deque)
    is_cut: bool = False
    timer: asyncio.TimerHandle | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)


class SimulatedReceiver:
    def __init__(self, network: Network, endpoint: str, deliver: Deliver) -> None:
        self.endpoint, self.deliver = endpoint, deliver
        self.process = current_process.get()
        # What comes of a message is the receiver's doing, not the sender's.
        self.context = copy_context()
        self.is_paused = self.is_closed = False
        self._network = network

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._network.go_on(self.endpoint)

    def close(self) -> None:
        self.is_closed = True
        self._network.leave(self)


class SimulatedSender:
    def __init__(self, network: Network, endpoint: str) -> None:
        self.endpoint = endpoint
        self._network = network
        self._link = network.link(current_process.get(), endpoint)
        self._is_closed = False

    async def send(self, frame: bytes) -> None:
        if self._is_closed:
            raise ControlPlaneClosed
        while len(self._link.frames) >= _SENDER_HOLDS and not self._link.is_cut:
            self._link.room.clear()
            await self._link.room.wait()
        self._network.send(self._link, frame)

    def close(self) -> None:
        self._is_closed = True


class SimulatedPublisher:
    """Sends to all subscribers, and to later ones what it sent before."""

    def __init__(self, network: Network, endpoint: str) -> None:
        self.endpoint = endpoint
        self._network = network
        network.published.setdefault(endpoint, deque(maxlen=1000))

    def send(self, frame: bytes) -> None:
        self._network.published[self.endpoint].append(frame)
        for link in self._network.subscribers(self.endpoint):
            self._network.send(link, frame)

    def close(self) -> None:
        return None


class Network:
    """
    Args:
        draw: Decides on delays and losses.

    Attributes:
        slow: Processes whose messages are late for the moment.
        prompt: Where messages are never late.
        trace: A digest of all that was delivered, and when.
    """

    def __init__(self, draw: random.Random, prompt: str) -> None:
        self.prompt = prompt
        self.slow: set[str] = set()
        self.published: dict[str, deque[bytes]] = {}
        self.trace = hashlib.sha256()
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, list[Link]] = {}
        self._receivers: dict[str, list[SimulatedReceiver]] = {}

    @contextmanager
    def in_place_of_sockets(self) -> Iterator[None]:
        """Control planes open these sockets meanwhile."""
        with mock.patch.multiple(
            control_plane,
            _bind=self._bind,
            _connect=lambda keys, endpoint, on_lost=None: SimulatedSender(self, endpoint),
            _publish=lambda keys, endpoint: SimulatedPublisher(self, endpoint),
            _subscribe=self._subscribe,
        ):
            yield

    def _bind(self, keys: Any, endpoint: str, deliver: Deliver) -> SimulatedReceiver:
        receiver = SimulatedReceiver(self, endpoint, deliver)
        self._receivers.setdefault(endpoint, []).append(receiver)
        self.go_on(endpoint)
        return receiver

    def _subscribe(self, keys: Any, endpoint: str, deliver: Deliver) -> SimulatedReceiver:
        own = f"{endpoint}?{current_process.get()}"
        receiver = self._bind(keys, own, deliver)
        link = self.link("", own)
        for frame in self.published.get(endpoint, ()):
            self.send(link, frame)
        return receiver

    def subscribers(self, endpoint: str) -> list[Link]:
        return [
            self.link("", own)
            for own, receivers in self._receivers.items()
            if own.startswith(f"{endpoint}?") and receivers
        ]

    def link(self, sender: str, endpoint: str) -> Link:
        links = self._links.setdefault(endpoint, [])
        found = next((each for each in links if each.sender == sender and not each.is_cut), None)
        if found is None:
            found = Link(sender, endpoint)
            links.append(found)
        return found

    def send(self, link: Link, frame: bytes) -> None:
        if link.is_cut:
            return
        delay = self._draw.expovariate(1 / 0.0002)
        # The coordinator and its supervisor are one process: what it does not read in time, it does not learn
        # by another way either.
        if link.endpoint == self.prompt:
            delay = min(delay, 0.002)
        elif link.sender in self.slow or self._draw.random() < 0.01:
            delay += self._draw.uniform(0.0, 0.5)
        due = max(self._loop.time() + delay, link.frames[-1][0] if link.frames else 0.0)
        link.frames.append((due, frame))
        self._arm(link)

    def go_on(self, endpoint: str) -> None:
        for link in list(self._links.get(endpoint, ())):
            self._arm(link)

    def leave(self, receiver: SimulatedReceiver) -> None:
        receivers = self._receivers.get(receiver.endpoint, [])
        if receiver in receivers:
            receivers.remove(receiver)

    def kill(self, process: str) -> None:
        """Ends the sockets of a process, with what they had not sent, or had received and not read."""
        for endpoint, links in self._links.items():
            receivers = self._receivers.get(endpoint, [])
            was_here = any(each.process == process for each in receivers)
            for link in links:
                if was_here:
                    for _ in range(self._draw.randint(0, min(len(link.frames), _KERNEL_HOLDS))):
                        link.frames.popleft()
                    link.room.set()
                if link.sender == process and not link.is_cut:
                    link.is_cut = True
                    while len(link.frames) > _KERNEL_HOLDS:
                        link.frames.pop()
                    link.room.set()
            receivers[:] = [each for each in receivers if each.process != process]

    def _arm(self, link: Link) -> None:
        if link.timer is None and link.frames:
            link.timer = self._loop.call_at(link.frames[0][0], self._deliver, link)

    def _deliver(self, link: Link) -> None:
        link.timer = None
        receivers = self._receivers.get(link.endpoint)
        if not receivers or not link.frames or receivers[-1].is_paused:
            return
        _, frame = link.frames.popleft()
        link.room.set()
        self.trace.update(f"{self._loop.time():.9f} {link.sender}>{link.endpoint} {len(frame)};".encode())
        if not receivers[-1].context.run(receivers[-1].deliver, frame):
            receivers[-1].is_paused = True
        self._arm(link)
