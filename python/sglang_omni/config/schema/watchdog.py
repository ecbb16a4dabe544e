"""The limits after which a process counts as hung or broken and is replaced."""

from __future__ import annotations

from pydantic import Field

from sglang_omni.config.schema.strict import Integer, Number, StrictModel


class WatchdogConfig(StrictModel):
    """The limits of the watchdog, the same for every process of a pipeline.

    Attributes:
        step_timeout: Seconds that one step of a stage may take before its process is ended. 0: no limit.
        heartbeat_timeout: Seconds without a heartbeat after which a process is ended. 0: no limit.
        unhealthy_after: Seconds without a heartbeat, or without a process that runs a stage, after which
            ``/health`` reports it and new requests go to other replicas.
        max_failed_steps: Steps that may fail in a row, without a result between them, before the process is
            ended. 0: no limit.
    """

    step_timeout: Number = Field(default=300.0, ge=0)
    heartbeat_timeout: Number = Field(default=30.0, ge=0)
    unhealthy_after: Number = Field(default=5.0, gt=0)
    max_failed_steps: Integer = Field(default=5, ge=0)
