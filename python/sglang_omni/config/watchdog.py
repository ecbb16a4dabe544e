"""When a process of a pipeline counts as hung or broken, and is replaced."""

from __future__ import annotations

from pydantic import Field

from sglang_omni.config.strict import Integer, Number, StrictModel


class WatchdogConfig(StrictModel):
    """The limits of the watchdog, the same for every process of a pipeline.

    Attributes:
        step_timeout: Seconds that one step of a stage may take; its process is ended then. 0: any time.
        heartbeat_timeout: Seconds without a heartbeat after which a process is ended. 0: it never is.
        unhealthy_after: Seconds without a heartbeat, or without a process that runs a stage, after which
            ``/health`` says so and new requests go to other replicas.
        max_failed_steps: Steps in a row that have failed without a single result between them, after which
            a process is ended. 0: it never is.
    """

    step_timeout: Number = Field(default=300.0, ge=0)
    heartbeat_timeout: Number = Field(default=30.0, ge=0)
    unhealthy_after: Number = Field(default=5.0, gt=0)
    max_failed_steps: Integer = Field(default=5, ge=0)
