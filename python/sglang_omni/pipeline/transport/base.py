"""The interface of the sockets: a ``Sender`` pushes to one peer, a ``Receiver`` pulls from many, in order.

There are three pairs: ``ipc/sockets.py`` for ``ipc://`` endpoints, ``tcp/push.py`` and
``tcp/pull.py`` for ``tcp://``, and ``zmq_socket.py`` within a process. Each socket belongs to the event loop
that runs when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Takes a message; returns False to get no more until ``resume``. Must not raise.
Deliver = Callable[[bytes], bool]


class ControlPlaneClosed(RuntimeError):
    """Raised by a pending or later ``recv`` or ``send`` once the control plane is closed."""

    def __init__(self) -> None:
        super().__init__("the control plane is closed")


class Receiver(Protocol):
    """Calls ``deliver`` with each message, in the order in which its sender sent it.

    While it is paused it reads nothing, so the senders' queues fill up and their ``send`` waits.
    """

    @property
    def endpoint(self) -> str:
        """Where it is bound or connected."""
        ...

    def pause(self) -> None: ...

    def resume(self) -> None:
        """Goes on after ``pause``, or after ``deliver`` returned False."""

    def close(self) -> None: ...


class Sender(Protocol):
    """Sends to one peer, which need not be there yet; messages leave in the order of the calls."""

    async def send(self, message: bytes) -> None:
        """Waits only while the peer's queue is full. Raises ControlPlaneClosed after ``close``."""

    def close(self) -> None:
        """Takes no more messages; queued ones may still leave within ``LINGER_S``."""
