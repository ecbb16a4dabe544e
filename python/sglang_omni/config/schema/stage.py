"""The fields of a stage's config. Every field is assignable after construction."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from sglang_omni.config.schema.strict import Count, Integer, Number, StrictModel, dotted, error_text

# Fields of a stage that hold one value or a list, in words.
_ONE_OR_MORE = {
    "gpu": "a GPU's id or a list of ids",
    "next": "a stage's name or a list of names",
    "node": "a host's name or a list with a name, or null, for each replica",
}
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


class ExecutorConfig(StrictModel):
    """A stage's factory in the legacy form. ``factory`` is a dotted path, ``args`` its arguments."""

    factory: str = Field(min_length=1)
    args: dict[str, Any] = Field(default_factory=dict)


class InputHandlerConfig(StrictModel):
    """A stage's input in the legacy form: from one sender at a time, or merged from all ``sources``."""

    type: Literal["direct", "aggregated"] = "direct"
    sources: list[str] | None = None
    merge_fn: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "aggregated" and not (self.sources and self.merge_fn):
            raise ValueError("input_handler of type 'aggregated' needs both 'sources' and 'merge_fn'")
        if self.type == "direct" and (self.sources or self.merge_fn):
            raise ValueError("input_handler of type 'direct' takes no 'sources' and no 'merge_fn'")
        return self


class RelayConfig(StrictModel):
    """The relay of a stage, which carries its tensors to other processes.

    Attributes:
        slot_size_mb: The size of a slot in MiB. Through shared memory each edge may have ``slot_size_mb`` x
            ``credits`` in flight, in payloads of any size.
        credits: The number of slots that may be in flight at once.
        rank: This stage's rank, for a relay of your own that has ranks; its position when None. No relay of
            this package has ranks: nccl makes groups of two on demand.
        world_size: The number of ranks, for a relay of your own; the number of stages when None.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``; the stage's own device unless it is set. Of this
            package's relays nccl reads it; the others are for the CPU.
        backend_options: Other arguments of the backend's constructor, such as ``host`` or ``protocol``. A
            name that none of the stage's backends takes is an error.
    """

    slot_size_mb: Integer = Field(default=512, gt=0)
    credits: Integer = Field(default=2, gt=0)
    rank: Integer | None = Field(default=None, ge=0)
    world_size: Integer | None = Field(default=None, gt=0)
    device: str = "cpu"
    backend_options: dict[str, Any] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _only_what_was_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A device that is written out would count as set when it is read again.
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}

    @property
    def explicit_device(self) -> str | None:
        """``device`` if it was set; None if it follows the placement."""
        return self.device if "device" in self.model_fields_set else None

    @property
    def restricting(self) -> set[str]:
        """The fields that were set and have no effect unless a relay reads them."""
        given = {name for name in self.model_fields_set if getattr(self, name) is not None}
        # A relay that does not read the device is on the CPU.
        unread = {"backend_options", *(["device"] if self.device == "cpu" else [])}
        return given - unread

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}")
        return device


class ParallelismConfig(StrictModel):
    """The number of ranks of a stage. ``tp`` is kept equal to the stage's ``tp_size``."""

    tp: Count = 1


class AutoscalingConfig(StrictModel):
    """Limits for the number of a stage's replicas, which follows the load. Fields as in Ray Serve.

    Attributes:
        min_replicas: The fewest that run.
        max_replicas: The most that run.
        target_ongoing_requests: Requests per replica, running and waiting, above which a replica is added.
        upscale_delay_s: Seconds for which there must be more requests than that before one is added.
        downscale_delay_s: Seconds for which fewer replicas must be enough before one is removed.
    """

    min_replicas: Count = 1
    max_replicas: Count
    target_ongoing_requests: Number = Field(default=2.0, gt=0)
    upscale_delay_s: Number = Field(default=1.0, ge=0)
    downscale_delay_s: Number = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas={self.max_replicas} is less than min_replicas={self.min_replicas}"
            )
        return self


class StageResourceConfig(StrictModel):
    """Resources of a stage.

    Attributes:
        total_gpu_memory_fraction: The fraction of a GPU's whole memory that each rank may use.
        num_cpus: CPUs that Ray reserves for each rank. A process reserves the sum over its stages, or one CPU
            if none of them sets this. Without Ray it has no effect.
    """

    total_gpu_memory_fraction: Number | None = Field(default=None, gt=0, le=1)
    num_cpus: Number | None = Field(default=None, ge=0)


class SGLangServerArgsConfig(StrictModel):
    """SGLang server arguments of a stage; they reach the factory in ``server_args_overrides``."""

    mem_fraction_static: Number | None = Field(default=None, gt=0, le=1)


class StageRuntimeConfig(StrictModel):
    """Typed values that a deployment tunes; ``runtime_arg_map`` names the factory arguments that get them."""

    resources: StageResourceConfig = Field(default_factory=StageResourceConfig)
    max_seq_len: Integer | None = Field(default=None, gt=0)
    video_fps: Number | None = Field(default=None, gt=0)
    sglang_server_args: SGLangServerArgsConfig = Field(default_factory=SGLangServerArgsConfig)


class StageConfig(StrictModel):
    """One stage: its factory, its routes, and its place. Functions and factories are dotted import paths.

    Attributes:
        name: Unique in the pipeline.
        factory: Builds the stage's scheduler.
        factory_args: Keyword arguments of the factory.
        next: The stage or stages that receive every result. Exclusive with ``terminal``.
        terminal: True if results of this stage go to the caller.
        route_fn: ``(request_id, output)`` -> the subset of ``next`` that receives this result.
        gpu: The GPU's id, or one id for each rank; None for the CPU. Replicas share these GPUs unless the
            list has ids for the ranks of all replicas, one replica after another.
        tp_size: The number of tensor-parallel ranks, each in a process of its own.
        node: The name under which the stage's host joins; None for the coordinator's host. A list has one
            entry for each replica.
        num_replicas: The number of stage replicas, which share the requests; each request stays with one of
            them. Stages that share a process are replicated together.
        autoscaling: Limits for a number of replicas that follows the load; in place of ``num_replicas``.
        process: The process that this stage shares with all others that name it. Required without TP.
        wait_for: The stages whose payloads are merged into this stage's input.
        wait_for_fn: ``(request_id, from_stage, payload)`` -> the non-empty subset of ``wait_for`` to
            expect for this request, or None if it is not known yet.
        merge_fn: ``({stage: payload})`` -> the merged payload.
        stream_to: The stages that receive this stage's stream chunks.
        stream_done_to_fn: ``(request_id, output)`` -> the subset of ``stream_to`` that learns of the end.
        project_payload: Target stage -> function ``(payload)`` -> the part of the payload it needs.
        relay: Settings of the stage's relays; inferred from the placement when None.
        edge_relays: Target stage -> the relay backend of that edge, in place of the one its place implies.
        num_workers: The number of schedulers side by side in the stage.
        runtime: Typed values that a deployment tunes.
        runtime_arg_map: Name of a typed runtime value -> the factory argument that receives it.
        parallelism: Another spelling of ``tp_size``.
        can_accept_stream_before_payload: True if chunks may arrive before the request's payload.
        takes_input: True if this stage gets what callers add to the input of requests that run, as a stream
            from ``coordinator``, which may begin before the payload comes. One stage of a pipeline may.
        executor: Legacy form: the factory and its arguments.
        get_next: Legacy form: ``(request_id, output)`` -> name, names, or None at the end.
        input_handler: Legacy form: the senders of the input.
    """

    name: str = Field(min_length=1)
    factory: str | None = None
    factory_args: dict[str, Any] = Field(default_factory=dict)
    next: str | list[str] | None = None
    terminal: bool = False
    route_fn: str | None = None
    gpu: Integer | list[Integer] | None = None
    tp_size: Count = 1
    process: str | None = None
    wait_for: list[str] | None = None
    wait_for_fn: str | None = None
    merge_fn: str | None = None
    stream_to: list[str] = Field(default_factory=list)
    stream_done_to_fn: str | None = None
    project_payload: dict[str, str] = Field(default_factory=dict)
    relay: RelayConfig | None = None
    edge_relays: dict[str, str] = Field(default_factory=dict)
    node: str | list[str | None] | None = None
    num_replicas: Count = 1
    autoscaling: AutoscalingConfig | None = None
    num_workers: Count = 1
    runtime: StageRuntimeConfig = Field(default_factory=StageRuntimeConfig)
    runtime_arg_map: dict[str, str] = Field(default_factory=dict)
    parallelism: ParallelismConfig = Field(default_factory=ParallelismConfig)
    can_accept_stream_before_payload: bool = False
    takes_input: bool = False
    executor: ExecutorConfig | None = None
    get_next: str | None = None
    input_handler: InputHandlerConfig | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _name_stage_in_errors(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Self:
        try:
            return handler(data)
        except ValidationError as exc:
            name = data.get("name") if isinstance(data, dict) else None
            if not isinstance(name, str):
                raise
            lines: dict[str, InitErrorDetails] = {}
            for error in exc.errors(include_url=False):
                field, *inside = error["loc"] or ("",)
                if inside and field in _ONE_OR_MORE:
                    # pydantic reports an error for each type of the union.
                    problem = f"{field} must be {_ONE_OR_MORE[str(field)]}, not {data[field]!r}"
                else:
                    problem = ": ".join(filter(None, [dotted(error["loc"]), error_text(error)]))
                lines[problem] = InitErrorDetails(
                    type=PydanticCustomError(
                        error["type"], "stage {stage}: {problem}", {"stage": repr(name), "problem": problem}
                    ),
                    loc=error["loc"],
                    input=error["input"],
                )
            raise ValidationError.from_exception_data(cls.__name__, [*lines.values()]) from None

    @model_validator(mode="after")
    def _normalize(self) -> Self:
        if self.name == "coordinator" or "/" in self.name or "@" in self.name:
            # Names are stream targets and parts of socket paths; "@" separates a replica's number.
            raise ValueError(f"stage {self.name!r}: name must not be 'coordinator' or contain '/' or '@'")
        if self.parallelism.tp != self.tp_size:
            given = self.model_fields_set
            if {"tp_size", "parallelism"} <= given:
                raise ValueError(
                    f"stage {self.name!r}: tp_size={self.tp_size} conflicts with "
                    f"parallelism.tp={self.parallelism.tp}; set one of them"
                )
            if "parallelism" in given:
                self.tp_size = self.parallelism.tp
            else:
                self.parallelism = ParallelismConfig(tp=self.tp_size)
        if self.process is not None:
            self.process = self.process.strip()
            if not self.process:
                raise ValueError(f"stage {self.name!r}: process must not be empty")
            if "@" in self.process:
                raise ValueError(f"stage {self.name!r}: process {self.process!r} must not contain '@'")
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Two spellings of one fact: an assignment to one sets the other.
        if name == "tp_size" and self.parallelism.tp != value:
            self.parallelism = ParallelismConfig(tp=value)
        elif name == "parallelism" and self.tp_size != value.tp:
            self.tp_size = value.tp

    @property
    def is_legacy(self) -> bool:
        """True if the stage is given as ``executor`` and ``get_next``."""
        return self.executor is not None

    @property
    def next_stages(self) -> list[str]:
        """``next`` as a list."""
        if self.next is None:
            return []
        return [self.next] if isinstance(self.next, str) else list(self.next)

    @property
    def is_replicated(self) -> bool:
        """True if there are several replicas, or autoscaling may add some."""
        return self.max_replicas > 1

    @property
    def min_replicas(self) -> int:
        """The number of replicas that start with the pipeline."""
        return self.autoscaling.min_replicas if self.autoscaling is not None else self.num_replicas

    @property
    def max_replicas(self) -> int:
        """The most replicas that may run."""
        return self.autoscaling.max_replicas if self.autoscaling is not None else self.num_replicas

    @property
    def gpu_ids(self) -> list[int]:
        """``gpu`` as a list, empty for a stage on the CPU."""
        if self.gpu is None:
            return []
        return [self.gpu] if isinstance(self.gpu, int) else list(self.gpu)
