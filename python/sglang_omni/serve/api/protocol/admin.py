"""The bodies of what administers a server."""

from __future__ import annotations

from typing import Literal

from sglang_omni.serve.api.fields import ApiModel, Name, OnlyFalse


class AbortRequest(ApiModel):
    """``rid`` is SGLang's name for ``request_id``."""

    request_id: Name | None = None
    rid: Name | None = None
    abort_all: OnlyFalse = False


class StartProfile(ApiModel):
    """SGLang's fields. With ``activities``, stages record what torch does too.

    ``output_dir`` is a folder on the server's host, and on those of its stages for what torch does.
    """

    output_dir: str | None = None
    profile_id: Name | None = None
    activities: list[Literal["CPU", "GPU"]] | None = None
