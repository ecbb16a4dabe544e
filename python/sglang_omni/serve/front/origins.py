"""Web pages of other origins that may use the server, as browsers ask it (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from sglang_omni.generation.request_id import HEADER

# What pages may read beside the body.
_TOLD = (HEADER, "retry-after", "x-sample-rate", "x-channels", "x-bit-depth", "x-finish-reason")
# Seconds for which a browser keeps an answer.
_KEPT_S = 600


def cross_origin(origins: Sequence[str]) -> list[Middleware]:
    """Answers browsers that ask for pages of these origins; ``*`` for any. Empty if there are none."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=list(_TOLD),
            max_age=_KEPT_S,
        )
    ]
