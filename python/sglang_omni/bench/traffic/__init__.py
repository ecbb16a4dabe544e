"""Kinds of requests: each module sends one kind, and notes in an outcome what came when."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from sglang_omni.bench.outcome import Outcome
from sglang_omni.bench.target import Target


class Traffic(Protocol):
    """Requests of one kind."""

    async def ask(self, index: int, outcomes: list[Outcome]) -> None:
        """Sends a request and reads its answer.

        Args:
            index: The request's number, which decides what is asked.
            outcomes: Holds one, whose clock runs. A session appends one for each further turn.

        Raises:
            CallFailed: The last outcome has failed.
        """


class Asking(NamedTuple):
    """What all requests of a run have in common.

    Attributes:
        voice: Of spoken answers; None leaves it to the server.
        more: Fields that each body has besides.
    """

    target: Target
    model: str
    voice: str | None
    more: dict[str, Any]
