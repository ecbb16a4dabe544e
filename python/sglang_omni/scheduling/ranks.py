"""How the ranks of one engine, each in a process of its own, come to do the same things in the same order."""

from __future__ import annotations

import time
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from sglang_omni.proto import codec

# How long the other ranks are waited for before they meet.
_MEET_S = 600.0
_TRY_AGAIN_S = 0.02
# How long a rank that cannot go on waits to see whether another one has ended, and then for its own end:
# whoever started the ranks says best which one it was, and takes the others down with it.
_GRACE_S = 2.0


class Operation(NamedTuple):
    """What a scheduler does between two steps.

    Attributes:
        data: The payload, the stream's item, or the stage where a stream ended.
        seed: What a new request that names no seed is sampled with, where several ranks must agree.
    """

    kind: Literal["new_request", "stream_chunk", "stream_done", "abort", "flush_cache", "stop"]
    request_id: str = ""
    data: Any = None
    seed: int | None = None


class RankLost(RuntimeError):
    """A rank has ended, or what it does can no longer be known to be what the others do."""


class RankGroup:
    """Rank 0's line to the others. Belongs to the scheduler's thread.

    Rank 0 sends one message an iteration, the operations before the next step, and nobody answers: ranks
    that do the same with the same state stay in step, and the model's own collectives make them wait for
    one another.
    """

    def __init__(self, rank: int, connections: list[Connection]) -> None:
        self.rank = rank
        self._connections = connections

    @classmethod
    def meet(cls, rank: int, size: int, path: str | Path) -> RankGroup:
        """Returns when all ranks are here.

        Args:
            path: Of a Unix socket, in a folder that only this user can enter.

        Raises:
            TimeoutError: Rank 0 does not come.
        """
        address = str(path)
        if rank > 0:
            connection = _connect(address)
            connection.send_bytes(rank.to_bytes(2, "little"))
            return cls(rank, [connection])
        # That of a group which was killed.
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
        """Tells the other ranks what to do before the next step.

        Raises:
            RankLost: One of them is gone.
        """
        packed = codec.plan([tuple(operation) for operation in operations]).to_bytes() if operations else b""
        try:
            for connection in self._connections:
                connection.send_bytes(packed)
        except OSError as exc:
            self.give_up(exc)

    def receive(self) -> list[Operation]:
        """What rank 0 says is next.

        Raises:
            RankLost: It is gone.
        """
        try:
            packed = self._connections[0].recv_bytes()
        except (EOFError, OSError) as exc:
            self.give_up(exc)
        if not packed:
            return []
        return [Operation(*fields) for fields in codec.unpack_payload(bytearray(packed), trusted=True)]

    def give_up(self, error: BaseException) -> NoReturn:
        """Raises RankLost: after ``error`` this rank does not know where the others are.

        Where one of them has ended, it waits first to be ended as well.
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
