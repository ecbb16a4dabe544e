"""Checks that this process may open more files: UCX and gloo end the process if they lack one."""

from __future__ import annotations

import contextlib
import os


def require_spare_files(count: int) -> None:
    """Raise OSError if this process may not open ``count`` more files."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(open(os.devnull))
