"""A request's owner and session. Requests of a session go to the same worker of a stage.

The router's policy ``consistent_hash`` uses the same key, so that router and stages agree.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection

from sglang_omni.serve.models.fields import ApiModel

SESSION_HEADER = "x-session-id"


def owner_of(request: HTTPConnection) -> str | None:
    """The owner of a request, as ``Guard`` found it; None if all requests have one owner."""
    owner: str | None = request.state.owner
    return owner


def session_key(request: HTTPConnection, body: ApiModel | None = None) -> str | None:
    """The request's session: its ``x-session-id``, or else the body's ``prompt_cache_key`` or ``user``.

    The key includes the owner, so that two owners' sessions of one name differ. None if there is no session;
    an empty header says so whatever the body has.
    """
    named = request.headers.get(SESSION_HEADER)
    if named is not None:
        # Starlette reads headers as Latin-1.
        named = named.encode("latin-1").decode(errors="replace")
    else:
        named = getattr(body, "prompt_cache_key", None) or getattr(body, "user", None)
    if not named:
        return None
    owner = owner_of(request)
    return named if owner is None else f"{owner}:{named}"
