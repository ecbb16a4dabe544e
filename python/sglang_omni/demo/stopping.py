"""Ends a demo by an exception at a signal, so that its servers and temporary files end with it."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """The signal ``number`` was received."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_by_exception() -> None:
    """Raises ``Stopped`` in the main thread at the first SIGINT, SIGTERM, or SIGHUP unless SIGHUP is ignored.

    A shell starts background jobs with SIGINT ignored, but a SIGINT sent to one is meant. Later signals are
    ignored: ending takes a few seconds and must not be interrupted.
    """
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)
