"""Options that several requests have."""

from __future__ import annotations

from sglang_omni.serve.models.fields import ApiModel, OnlyFalse


class StreamOptions(ApiModel):
    include_usage: bool = False
    """True if a last event has the counts of tokens."""
    include_obfuscation: bool = False
    """Accepted, no effect."""
    continuous_usage_stats: OnlyFalse = False
