"""Whose requests these are, and which belong together: those of a session meet one worker of a stage.

It is what the router's policy ``consistent_hash`` goes by, so that router and stages agree.
"""

from __future__ import annotations

from starlette.requests import Request

from sglang_omni.serve.api.fields import ApiModel

SESSION_HEADER = "x-session-id"


def owner_of(request: Request) -> str | None:
    """Whose request it is, in a word that tells nothing else; None if the server has all of one owner."""
    owner: str | None = request.state.owner
    return owner


def session_key(request: Request, body: ApiModel | None = None) -> str | None:
    """The request's session: its ``x-session-id``, or else the body's ``prompt_cache_key`` or ``user``.

    It is the owner's: two owners' sessions of one name are two. None if there is none. A header that is there
    and empty says so, whatever the body has.
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
