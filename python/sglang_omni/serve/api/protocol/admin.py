"""The bodies of what administers a server."""

from __future__ import annotations

from sglang_omni.serve.api.fields import ApiModel, Name, OnlyFalse


class AbortRequest(ApiModel):
    """``rid`` is SGLang's name for ``request_id``."""

    request_id: Name | None = None
    rid: Name | None = None
    abort_all: OnlyFalse = False
