"""Request ids: the same in the header ``x-request-id``, in the pipeline and in all logs."""

from __future__ import annotations

import re
import uuid

HEADER = "x-request-id"
# Tells a server which of a router's clients sent a request. Opaque.
OWNER_HEADER = "x-sglang-omni-owner"
_USABLE = re.compile(r"[\x21-\x7e]{1,128}")


def new_request_id() -> str:
    """A random id of 32 characters."""
    return uuid.uuid4().hex


def is_usable(request_id: str) -> bool:
    """True if an id fits into a header and a log line: 1 to 128 visible ASCII characters."""
    return _USABLE.fullmatch(request_id) is not None
