"""Options that several requests have."""

from __future__ import annotations

from sglang_omni.serve.api.fields import ApiModel, OnlyFalse


class StreamOptions(ApiModel):
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: OnlyFalse = False
