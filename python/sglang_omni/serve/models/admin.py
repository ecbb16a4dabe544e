"""The bodies of what administers a server."""

from __future__ import annotations

from typing import Literal

from sglang_omni.serve.models.fields import ApiModel, Name, OnlyFalse, OnlyNone


class AbortRequest(ApiModel):
    """``rid`` is SGLang's name for ``request_id``."""

    request_id: Name | None = None
    """The request's id, or the id of its answer."""
    rid: Name | None = None
    """SGLang's name of ``request_id``."""
    abort_all: OnlyFalse = False


class StartProfile(ApiModel):
    """SGLang's fields. With ``activities``, stages record what torch does too, until ``/stop_profile``.

    ``output_dir`` is a folder on the server's host, and on those of its stages for what torch does.
    """

    output_dir: str | None = None
    """A folder on the server's host, and on those of its stages for what torch does."""
    profile_id: Name | None = None
    """The name of the profile, which its files begin with."""
    activities: list[Literal["CPU", "GPU"]] | None = None
    """What torch records in the stages: their CPU, their GPU; nothing of torch if left out."""
    start_step: OnlyNone = None
    num_steps: OnlyNone = None
    profile_by_stage: OnlyFalse = False
    with_stack: OnlyFalse | None = None
    record_shapes: OnlyFalse | None = None
    merge_profiles: OnlyFalse = False
    profile_prefix: OnlyNone = None
    profile_stages: OnlyNone = None
