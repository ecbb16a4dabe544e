"""Errors that a request's caller gets from any stage."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

# Characters of an error's message, and of the name of the field in it.
_LONGEST_MESSAGE = 2000
_LONGEST_PARAM = 256

# Errors of the system for want of descriptors or memory: another try may find some.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# The HTTP status that tells an ``Unavailable`` from a RequestError where both are fields.
UNAVAILABLE = 503


def shortened(text: str, limit: int = _LONGEST_MESSAGE) -> str:
    """``text``, cut after ``limit`` characters."""
    return text if len(text) <= limit else f"{text[:limit]}..."


class Unavailable(RuntimeError):
    """No request can be served for now. Another server, or a later try, may succeed.

    Any stage may raise it; it reaches the caller as it is.
    """

    def to_dict(self) -> dict[str, Any]:
        """The error in the form of ``RequestError.to_dict``."""
        return {"message": shortened(str(self)), "status": UNAVAILABLE}


class DuplicateRequest(ValueError):
    """A running request, which goes on, already has the id."""


class RequestError(ValueError):
    """A request that cannot be served as it stands. Any stage may raise it.

    Its fields travel back to the caller; the API turns them into OpenAI's error shape.

    Attributes:
        message: What is wrong and what would be right; cut at 2,000 characters, because it may quote
            requests.
        param: The request field at fault, as the caller spells it, cut at 256 characters.
        code: The machine-readable reason, such as ``context_length_exceeded``; docs/server.md lists them.
            None if there is only the message.
        status: The HTTP status of the answer: 4xx; 502 or 504 if a server that a stage asks fails.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        self.message = shortened(message)
        super().__init__(self.message)
        self.param = None if param is None else shortened(param, _LONGEST_PARAM)
        self.code = code
        self.status = status

    def to_dict(self) -> dict[str, Any]:
        return {"message": self.message, "param": self.param, "code": self.code, "status": self.status}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> RequestError:
        """The error with the fields that ``to_dict`` returned, of which only ``message`` is required.

        Raises:
            ValueError: ``message`` is missing, or a field is of the wrong type.
        """
        match {"param": None, "code": None, "status": 400, **fields}:
            case {
                "message": str() as message,
                "param": str() | None as param,
                "code": str() | None as code,
                "status": int() as status,
            }:
                return cls(message, param=param, code=code, status=status)
        raise ValueError(f"not the fields of a RequestError: {fields!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (RequestError.from_dict, (self.to_dict(),))


def first_failure(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that ended a group of tasks: a request has one error."""
    first = failed.exceptions[0]
    return first_failure(first) if isinstance(first, BaseExceptionGroup) else first
