"""Keeps the ranks of one engine in step: each does the operations of rank 0 in the same order."""

from __future__ import annotations

import time
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from sglang_omni.proto import codec

# The longest wait for rank 0 to listen.
_MEET_S = 600.0
_TRY_AGAIN_S = 0.02
# A rank that cannot go on waits so long to see if another has ended, and then so long to be ended itself: the
# supervisor reports best which rank was at fault, and ends the others.
_GRACE_S = 2.0


class Operation(NamedTuple):
    """What a scheduler does between two steps.

    Attributes:
        data: The payload, the stream's item, or the source stage of a stream that ended.
        seed: For a new request that has none, because all ranks must draw the same numbers.
    """

    kind: Literal["new_request", "built", "stream_chunk", "stream_done", "abort", "flush_cache", "stop"]
    request_id: str = ""
    data: Any = None
    seed: int | None = None


class RankLost(RuntimeError):
    """A rank has ended, or may no longer do the same as the others."""


class RankGroup:
    """The connections between rank 0 and the others. Used by the scheduler's thread only.

    Before each step, rank 0 sends one message with its operations, without a reply: ranks that do the same
    with the same state stay in step, and the model's collectives make them wait for each other.
    """

    def __init__(self, rank: int, connections: list[Connection]) -> None:
        self.rank = rank
        self._connections = connections

    @classmethod
    def meet(cls, rank: int, size: int, path: str | Path) -> RankGroup:
        """Connects all ranks; returns when all are connected.

        Args:
            path: Of a Unix socket, in a folder that only this user can enter.

        Raises:
            TimeoutError: Rank 0 does not listen in time.
        """
        address = str(path)
        if rank > 0:
            connection = _connect(address)
            connection.send_bytes(rank.to_bytes(2, "little"))
            return cls(rank, [connection])
        # A killed group may have left its socket.
        Path(address).unlink(missing_ok=True)
        with Listener(address, "AF_UNIX", backlog=size) as listener:
            connections = [listener.accept() for _ in range(size - 1)]
        ranks = sorted(int.from_bytes(connection.recv_bytes(2), "little") for connection in connections)
        if ranks != list(range(1, size)):
            raise RankLost(f"ranks 1 to {size - 1} were expected, and {ranks} came")
        return cls(0, connections)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def send(self, operations: list[Operation]) -> None:
        """Sends the other ranks the operations to do before the next step.

        Raises:
            RankLost: One of them has ended.
        """
        packed = codec.plan([tuple(operation) for operation in operations]).to_bytes() if operations else b""
        try:
            for connection in self._connections:
                connection.send_bytes(packed)
        except OSError as exc:
            self.give_up(exc)

    def receive(self) -> list[Operation]:
        """Waits for the operations of rank 0 before the next step.

        Raises:
            RankLost: Rank 0 has ended.
        """
        try:
            packed = self._connections[0].recv_bytes()
        except (EOFError, OSError) as exc:
            self.give_up(exc)
        if not packed:
            return []
        return [Operation(*fields) for fields in codec.unpack_payload(bytearray(packed), trusted=True)]

    def give_up(self, error: BaseException) -> NoReturn:
        """Raises RankLost, because after ``error`` this rank may differ from the others.

        If another rank has ended, waits first to be ended by the supervisor.
        """
        if wait(self._connections, _GRACE_S if self.leads else 0.0):
            time.sleep(_GRACE_S)
        raise RankLost(
            f"rank {self.rank} of a tensor-parallel group cannot go on, and no rank can without it: {error}"
        ) from error


def _connect(address: str) -> Connection:
    deadline = time.monotonic() + _MEET_S
    while True:
        try:
            return Client(address, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 did not come to {address} within {_MEET_S:g} s") from None
            time.sleep(_TRY_AGAIN_S)
