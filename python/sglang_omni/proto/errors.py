"""Errors that cross stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestError(ValueError):
    """A request that cannot be served as it stands, whatever stage found it out.

    Its fields survive the way back to the caller, where the API turns them into OpenAI's error shape.

    Attributes:
        message: What is wrong and what would be right.
        param: The request field at fault, as the caller spells it.
        code: A short machine-readable reason.
        status: The HTTP status it answers with, 4xx.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str = "invalid_request_error",
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
        return cls(
            str(fields["message"]),
            param=fields.get("param"),
            code=str(fields.get("code", "invalid_request_error")),
            status=int(fields.get("status", 400)),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (RequestError.from_dict, (self.to_dict(),))
