"""The base of what realtime clients send: unknown fields are errors, and null is a value of its own."""

from __future__ import annotations

from sglang_omni.serve.models.fields import ReceivedModel


class RealtimeModel(ReceivedModel):
    """Unlike a request's body, an update tells null, which switches off, from what is left out."""
