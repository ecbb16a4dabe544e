"""What the OpenAPI description says of answers that are not JSON alone."""

from __future__ import annotations

from typing import Any

EVENTS = "text/event-stream"


def media(*kinds: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The media types that a route's answer may have, beside that of its ``response_class``."""
    return {status: {"content": {kind: {} for kind in kinds}}}
