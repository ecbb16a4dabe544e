"""A limit on the growth of a server's log through the requests of strangers."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

# Records of each line of code: so many at once, and then so many a second.
_BURST = 100
_PER_SECOND = 10.0
_LONGEST = 4000


@dataclass
class _Bucket:
    left: float
    at: float
    left_out: int = 0


class LogLimit(logging.Filter):
    """A handler's filter that leaves out some records of a line of code that logs again and again.

    The next record says how many were left out. Clients name their requests and can make them fail at will.
    Debug records are not limited.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buckets: dict[tuple[str, int], _Bucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        now = time.monotonic()
        bucket = self._buckets.setdefault((record.pathname, record.lineno), _Bucket(_BURST, now))
        bucket.left = min(_BURST, bucket.left + (now - bucket.at) * _PER_SECOND)
        bucket.at = now
        if bucket.left < 1:
            bucket.left_out += 1
            return False
        bucket.left -= 1
        text = record.getMessage()
        if len(text) > _LONGEST or bucket.left_out:
            more = f" ({bucket.left_out} lines like this one were left out)" if bucket.left_out else ""
            record.msg, record.args = f"{text[:_LONGEST]}{more}", ()
            bucket.left_out = 0
        return True


def limit_logs() -> None:
    """Have this process's log hold no more than it should, and of chatty libraries only warnings."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    for chatty in ("httpx", "httpx2", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
