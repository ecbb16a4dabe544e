"""Errors that cross stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Unavailable(RuntimeError):
    """Requests are not served for now, whatever they ask for: another server, or a later try, may do it."""


class DuplicateRequest(ValueError):
    """A running request has the id already. That one goes on."""


class RequestError(ValueError):
    """A request that cannot be served as it stands, whatever stage found it out.

    Its fields survive the way back to the caller, where the API turns them into OpenAI's error shape.

    Attributes:
        message: What is wrong and what would be right.
        param: The request field at fault, as the caller spells it.
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
        super().__init__(message)
        self.message = message
        self.param = param
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
