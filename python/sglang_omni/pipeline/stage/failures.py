"""The errors that an exception in a stage becomes for its request's caller."""

from __future__ import annotations

from sglang_omni.proto import SHORTAGES, Unavailable
from sglang_omni.relay.base import RelayReadError, RelayTimeout


def error_text(exc: BaseException) -> str:
    """An exception's type and text, as a request's error says it."""
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__


def is_shortage(exc: BaseException) -> bool:
    """True if the machine lacked descriptors or memory, which it may have again."""
    return isinstance(exc, OSError) and exc.errno in SHORTAGES


def transfer_failure(what: str, exc: BaseException) -> Unavailable | str:
    """A request's error for what it was to send or to read.

    It is ``Unavailable`` if that says nothing of the request: its peer, room or descriptors were gone.
    """
    text = f"{what} failed: {error_text(exc)}"
    return Unavailable(text) if is_shortage(exc) or isinstance(exc, RelayTimeout | RelayReadError) else text
