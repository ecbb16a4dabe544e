"""When a request is sent again: only before the first byte of its answer, and not for long."""

from __future__ import annotations

import random
import time
from email.utils import parsedate_to_datetime

import httpx

# Statuses of a server that has not begun with the request.
_NOT_BEGUN = {429, 503}
# Nothing of the request has reached a server.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
# The connection was lost before the answer: the server may have begun, or not.
_LOST = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0
# A server that asks for more is better wanted by the caller, later.
_LONGEST_ASKED_S = 60.0


def may_repeat(failure: httpx.Response | httpx.HTTPError, *, idempotent: bool) -> bool:
    """True if a failed attempt may be followed by another.

    Args:
        failure: An answer's head, or what was raised in its place.
        idempotent: True if the server may be wanted twice for the same.
    """
    if isinstance(failure, httpx.Response):
        return failure.status_code in _NOT_BEGUN
    return isinstance(failure, _NOT_SENT) or (idempotent and isinstance(failure, _LOST))


def pause_before(attempt: int, failure: httpx.Response | httpx.HTTPError) -> float | None:
    """Seconds to wait before an attempt, as the server asks in ``Retry-After``; else twice as long each time.

    Args:
        attempt: 1 for the first repetition.

    Returns:
        None if the server asks for more than a minute.
    """
    wanted = _retry_after(failure) if isinstance(failure, httpx.Response) else None
    if wanted is not None:
        return wanted if wanted <= _LONGEST_ASKED_S else None
    # Random in its upper half: callers that failed together do not come back together.
    return min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)


def _retry_after(answer: httpx.Response) -> float | None:
    """``Retry-After`` in seconds: a number, or a date."""
    value = answer.headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
