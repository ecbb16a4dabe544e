"""What a stage is connected to: the hooks that choose its targets, and how each target is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sglang_omni.config.plan.instances import stage_of
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.proto import StagePayload

GetNextFn = Callable[[str, Any], str | list[str] | None]
GetStreamDoneTargetsFn = Callable[[str, Any], str | list[str] | None]
ProjectFn = Callable[[StagePayload], StagePayload]


@dataclass(frozen=True)
class Wiring:
    """Hooks and their targets name stages; edges lead to instances.

    Attributes:
        instance: The sending instance.
        get_next: ``get_next(request_id, output)`` names the next stage or stages; None completes the request.
        endpoints: ``{instance: endpoint}`` of the targets; one on another host may be empty at first.
        project_payload: ``{stage: function}`` that reduces a payload to what the target needs.
        stream_targets: Stages that untargeted chunks go to; to the caller if there are none.
        get_stream_done_targets: ``f(request_id, output)`` names the stream targets whose stream ends with the
            result, None for none; without it, all of them.
        same_gpu_targets: Instances on the same GPU, in other processes.
        same_process_targets: Instances in this process, which ``dispatcher`` reaches.
        dispatcher: The stages of this process.
    """

    instance: str
    get_next: GetNextFn
    endpoints: Mapping[str, str] = field(default_factory=dict)
    project_payload: Mapping[str, ProjectFn] = field(default_factory=dict)
    stream_targets: tuple[str, ...] = ()
    get_stream_done_targets: GetStreamDoneTargetsFn | None = None
    same_gpu_targets: frozenset[str] = frozenset()
    same_process_targets: frozenset[str] = frozenset()
    dispatcher: LocalStageDispatcher = field(default_factory=LocalStageDispatcher)

    @cached_property
    def stage_name(self) -> str:
        """The stage that the instance is one of."""
        return stage_of(self.instance)

    @cached_property
    def topology(self) -> frozenset[str]:
        """The stages that a result may go to."""
        return frozenset(map(stage_of, (*self.endpoints, *self.same_process_targets)))
