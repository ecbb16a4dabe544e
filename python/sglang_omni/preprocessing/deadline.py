"""What ends a piece of work before it is done: that its request was aborted, or that it takes too long.

Threads cannot be ended from outside. Work calls its check between its pieces, and the check raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sglang_omni.proto import RequestError

# Raises if the work is to end.
Check = Callable[[], None]


class Aborted(Exception):
    """The request was aborted while it was being worked on: its result is wanted no more."""


def go_on() -> None:
    """The check of work that nothing ends."""


def never() -> bool:
    """Whether a request has been aborted that cannot be."""
    return False


def until_aborted(aborted: Callable[[], bool]) -> Check:
    """A check that raises ``Aborted`` from when ``aborted()`` is true."""

    def check() -> None:
        if aborted():
            raise Aborted

    return check


class Deadline:
    """A check for the work on one medium, from now on."""

    def __init__(self, seconds: float, *, param: str, check: Check = go_on) -> None:
        """
        Args:
            param: The request field that the medium came from.
            check: Is called too.
        """
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._param = param
        self._check = check

    def __call__(self) -> None:
        """
        Raises:
            RequestError: The time is over.
        """
        self._check()
        if time.monotonic() > self._end:
            raise RequestError(
                f"{self._param} takes longer than {self._seconds:g} s to decode: send a shorter or smaller "
                "file, or try again if the server is busy",
                param=self._param,
                code="media_timeout",
            )
