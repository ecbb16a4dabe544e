"""What an answer warns of: a field of the request that has no effect, or another one than it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# The texts as keys, so that each is said once; None where the answer has no place for warnings.
_warnings: ContextVar[dict[str, None] | None] = ContextVar("_warnings", default=None)


def warn(text: str) -> bool:
    """Have the answer to the request that is being read say this; False if it has no place for warnings."""
    warnings = _warnings.get()
    if warnings is None:
        return False
    warnings[text] = None
    return True


@contextmanager
def collected() -> Iterator[dict[str, None]]:
    """What is warned of within, as keys in order; also in threads that run in a copy of the context."""
    warnings: dict[str, None] = {}
    token = _warnings.set(warnings)
    try:
        yield warnings
    finally:
        _warnings.reset(token)


def warning_headers(warnings: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """A ``Warning`` header (RFC 7234, 5.5) for each text; in ASCII, as a header must be."""
    return [(b"warning", f"299 sglang-omni {json.dumps(text)}".encode()) for text in warnings]
