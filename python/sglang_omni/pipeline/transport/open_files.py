"""How many files a process may have open that others can connect to."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

# What strangers connect to at a run's ports is closed within seconds, and is to leave room until then. The
# usual limit, 1024, is one scanner's burst.
_WANTED = 65536


def raise_limit() -> None:
    """As far as this process may; the processes it starts inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        logger.debug("May have %d files open, in place of %d", wanted, soft)
