"""Raises the limit of open files for processes that listen on ``tcp://``."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

# Files a process should be able to open. Connections of strangers to a run's ports stay open for seconds,
# and one scanner's burst fills the usual limit, 1024.
_WANTED = 65536


def raise_limit() -> None:
    """Raises this process's soft limit as far as the hard one allows; its children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        logger.debug("May have %d files open, in place of %d", wanted, soft)
