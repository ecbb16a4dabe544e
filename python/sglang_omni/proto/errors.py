"""Errors that cross stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Characters of a message, and of the name of a field in it.
_LONGEST_MESSAGE = 2000
_LONGEST_PARAM = 256


def shortened(text: str, limit: int = _LONGEST_MESSAGE) -> str:
    """``text``, of which no more than the beginning is left if it has over ``limit`` characters."""
    return text if len(text) <= limit else f"{text[:limit]}..."


class Unavailable(RuntimeError):
    """Requests are not served for now, whatever they ask for: another server, or a later try, may do it."""


class DuplicateRequest(ValueError):
    """A running request has the id already. That one goes on."""


class RequestError(ValueError):
    """A request that cannot be served as it stands, whatever stage found it out.

    Its fields survive the way back to the caller, where the API turns them into OpenAI's error shape.

    Attributes:
        message: What is wrong and what would be right; cut at 2,000 characters, as it may quote requests.
        param: The request field at fault, as the caller spells it, cut at 256 characters.
        code: The machine-readable reason, such as ``context_length_exceeded``, which callers may test for;
            docs/server.md lists them. None where there is nothing to tell but the message.
        status: The HTTP status it answers with, 4xx.
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
        """The error that ``to_dict`` described; ``message`` is the one field it must have.

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
