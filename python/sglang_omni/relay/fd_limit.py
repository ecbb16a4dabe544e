"""Whether this process may open more files: UCX and gloo end it where they lack some that they need."""

from __future__ import annotations

import contextlib
import os


def require_spare_files(count: int) -> None:
    """Raise OSError where this process may not open so many files more."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(open(os.devnull))
