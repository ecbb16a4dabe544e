"""Default limits on the size of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BodyLimits:
    """How large the bodies of requests may be.

    Attributes:
        max_body_size: Bytes of a request's body.
        max_json_size: Bytes of a JSON body apart from its media.
    """

    max_body_size: int = 64 * 2**20
    max_json_size: int = 8 * 2**20
