"""The base of what realtime clients send: unknown fields are errors, and null is a value of its own."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RealtimeModel(BaseModel):
    """Unlike a request's body, an update tells null, which switches off, from what is left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
