"""Checks that end work early, because its request was aborted or because it takes too long.

A thread cannot be ended from outside. The work calls a check between its pieces, and the check raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sglang_omni.proto import RequestError

# Raises if the work must end.
Check = Callable[[], None]


class Aborted(Exception):
    """The request was aborted; its result is no longer needed."""


def go_on() -> None:
    """A check that never ends the work."""


def never() -> bool:
    """The abort state of a request that cannot be aborted."""
    return False


def until_aborted(aborted: Callable[[], bool]) -> Check:
    """A check that raises ``Aborted`` once ``aborted()`` is true."""

    def check() -> None:
        if aborted():
            raise Aborted

    return check


class Deadline:
    """A check that limits the time for one medium, starting now."""

    def __init__(self, seconds: float, *, param: str, check: Check = go_on) -> None:
        """
        Args:
            param: The request's field, for error messages.
            check: Another check, called first.
        """
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._param = param
        self._check = check

    def __call__(self) -> None:
        """
        Raises:
            RequestError: The time limit is exceeded.
        """
        self._check()
        if time.monotonic() > self._end:
            raise RequestError(
                f"{self._param} takes longer than {self._seconds:g} s to decode: send a shorter or smaller "
                "file, or try again if the server is busy",
                param=self._param,
                code="media_timeout",
            )
