"""The body of ``/v1/realtime/client_secrets``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sglang_omni.serve.models.fields import ApiModel, Name

_DEFAULT_SECONDS = 600


class ExpiresAfter(ApiModel):
    anchor: Literal["created_at"] = "created_at"
    """From when the seconds count."""
    seconds: Annotated[int, Field(ge=10, le=7200)] = _DEFAULT_SECONDS
    """For how long the key opens sessions."""


class ClientSecretRequest(ApiModel):
    """``session``: what its sessions begin with, as the ``session`` of a ``session.update``."""

    expires_after: ExpiresAfter = Field(default_factory=ExpiresAfter)
    """How long the key is valid."""
    session: dict[Name, Any] | None = None
    """What its sessions begin with, as the ``session`` of a ``session.update``."""
