"""What a request is called: over HTTP in the header ``x-request-id``, in the pipeline, and in all logs."""

from __future__ import annotations

import re
import uuid

HEADER = "x-request-id"
# Whose requests they are, as a router tells a server that serves several of its clients. Opaque.
OWNER_HEADER = "x-sglang-omni-owner"
_USABLE = re.compile(r"[\x21-\x7e]{1,128}")


def new_request_id() -> str:
    return uuid.uuid4().hex


def is_usable(request_id: str) -> bool:
    """Whether it can stand in a header and in a log line as it is: 1 to 128 visible ASCII characters."""
    return _USABLE.fullmatch(request_id) is not None
