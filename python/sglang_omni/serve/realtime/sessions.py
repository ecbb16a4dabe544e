"""The realtime sessions of one server: how many are open, and how many may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sglang_omni.proto import RequestError

# Each may keep tens of megabytes of sound.
MAX_SESSIONS = 256


class Sessions:
    """
    Attributes:
        count: How many are open.
    """

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self.limit = limit
        self.count = 0

    def check_room(self) -> None:
        """
        Raises:
            RequestError: 429: there are as many as there may be.
        """
        if self.count >= self.limit:
            raise RequestError(
                f"{self.limit} realtime sessions are open, the limit; try again later",
                code="rate_limit_exceeded",
                status=429,
            )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count one as long as the context lasts.

        Raises:
            RequestError: As ``check_room``.
        """
        self.check_room()
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
