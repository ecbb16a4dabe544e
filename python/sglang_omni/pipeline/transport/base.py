"""What the control plane needs of a socket: PUSH to one peer, PULL from many, whole messages in order.

Three kinds of sockets do that: ``local_push`` and ``local_pull`` on ``ipc://`` endpoints, ``tcp_push`` and
``tcp_pull`` on ``tcp://``, and ``zmq_socket`` within a process. All of it belongs to the thread of the
running loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Messages taken from one connection before the loop's other work gets its turn.
BATCH = 256
# Messages on their way to one peer, from which on its senders wait.
QUEUED_MESSAGES = 1000
# How long the last messages may take to leave at close: they do, and a stop still takes seconds at most.
LINGER_S = 0.5
# Between two attempts to reach a peer. It may be on its way up, or come back on the same endpoint.
FIRST_RETRY_S = 0.02
LONGEST_RETRY_S = 0.5

# Takes a message; False to get no more until ``resume``. Must not raise.
Deliver = Callable[[bytes], bool]


class ControlPlaneClosed(RuntimeError):
    """Raised by a pending or later ``recv`` or ``send`` once the control plane is closed."""

    def __init__(self) -> None:
        super().__init__("the control plane is closed")


class Receiver(Protocol):
    """Calls ``deliver`` with each message, in the order in which its sender sent it.

    While it is paused it reads nothing, so that the senders' queues fill up and their ``send`` waits.
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
        """Takes no more messages; what is queued may still leave within ``LINGER_S``."""
