"""How a demo is told to end: by an exception, so that what it started and wrote goes with it."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal came; ``number`` is its."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_by_exception() -> None:
    """Raise ``Stopped`` in the main thread at the first SIGINT, SIGTERM, or SIGHUP unless that is ignored.

    A shell has what it starts with ``&`` ignore SIGINT, but a SIGINT that is sent there is meant. Later
    signals do nothing: ending takes a few seconds, and must not be left half done.
    """
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)
