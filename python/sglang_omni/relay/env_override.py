"""Overrides an environment variable for a moment: some engines read theirs only while they are made."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_changing = threading.Lock()


@contextlib.contextmanager
def setting(name: str, value: str) -> Iterator[None]:
    """Set a variable inside the block only, so that no process that starts later inherits it."""
    with _changing:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
