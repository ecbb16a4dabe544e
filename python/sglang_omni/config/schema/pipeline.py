"""The fields of a pipeline's config: its stages, how they connect, and where they run.

Every field is assignable after construction. ``validate_pipeline`` and the functions that make plans
(``build_stage_placement_plan``, ``build_process_topology_plan``) check assignments.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
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

from sglang_omni.config.schema.config_cls import find_config_cls
from sglang_omni.config.schema.serves import ServesConfig
from sglang_omni.config.schema.strict import Integer, Number, StrictModel, dotted, error_text
from sglang_omni.config.schema.rules import refuse_unknown_stages, validate_pipeline
from sglang_omni.config.schema.watchdog import WatchdogConfig

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


def _default_base_path() -> str:
    root = os.environ.get("XDG_RUNTIME_DIR")
    if root and os.access(root, os.W_OK):
        return str(Path(root) / "sglang_omni")
    return str(Path(tempfile.gettempdir()) / f"sglang_omni-{os.getuid()}")


class EndpointsConfig(StrictModel):
    """Addresses of the control plane's sockets.

    Attributes:
        base_path: Folder of the run's ``ipc://`` sockets; by default under the user's runtime folder.
        scheme: ``"ipc"`` within a machine, ``"tcp"`` across machines.
        host: The address ``tcp`` sockets bind to.
        base_port: The first of the consecutive ``tcp`` ports; free ports are picked when None.
    """

    base_path: str = Field(default_factory=_default_base_path)
    scheme: Literal["ipc", "tcp"] = "ipc"
    host: str = "127.0.0.1"
    base_port: Integer | None = Field(default=None, gt=0, lt=65536)


class PlacementConfig(StrictModel):
    """Limits on what stages may share a GPU.

    Attributes:
        max_total_gpu_memory_fraction_per_gpu: The limit of the sum of declared fractions on one GPU.
        require_memory_fraction_for_colocation: True if every stage on a GPU that several processes share must
            declare its fraction.
    """

    max_total_gpu_memory_fraction_per_gpu: Number = Field(default=1.0, gt=0, le=1)
    require_memory_fraction_for_colocation: bool = True


class ParallelismConfig(StrictModel):
    """The number of ranks of a stage. ``tp`` is kept equal to the stage's ``tp_size``."""

    tp: Integer = Field(default=1, ge=1)


class AutoscalingConfig(StrictModel):
    """Limits for the number of a stage's replicas, which follows the load. Fields as in Ray Serve.

    Attributes:
        min_replicas: The fewest that run.
        max_replicas: The most that run.
        target_ongoing_requests: Requests per replica, running and waiting, above which a replica is added.
        upscale_delay_s: Seconds for which there must be more requests than that before one is added.
        downscale_delay_s: Seconds for which fewer replicas must be enough before one is removed.
    """

    min_replicas: Integer = Field(default=1, ge=1)
    max_replicas: Integer = Field(ge=1)
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
            expect for this request, or None if it cannot tell yet.
        merge_fn: ``({stage: payload})`` -> the merged payload.
        stream_to: The stages that receive this stage's stream chunks.
        stream_done_to_fn: ``(request_id, output)`` -> the subset of ``stream_to`` that is told of the end.
        project_payload: Target stage -> function ``(payload)`` -> the part of the payload it needs.
        relay: Settings of the stage's relays; inferred from the placement when None.
        edge_relays: Target stage -> the relay backend of that edge, in place of the one its place implies.
        num_workers: The number of schedulers side by side in the stage.
        runtime: Typed values that a deployment tunes.
        runtime_arg_map: Name of a typed runtime value -> the factory argument that receives it.
        parallelism: Another spelling of ``tp_size``.
        can_accept_stream_before_payload: True if chunks may arrive before the request's payload.
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
    tp_size: Integer = Field(default=1, ge=1)
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
    num_replicas: Integer = Field(default=1, ge=1)
    autoscaling: AutoscalingConfig | None = None
    num_workers: Integer = Field(default=1, ge=1)
    runtime: StageRuntimeConfig = Field(default_factory=StageRuntimeConfig)
    runtime_arg_map: dict[str, str] = Field(default_factory=dict)
    parallelism: ParallelismConfig = Field(default_factory=ParallelismConfig)
    can_accept_stream_before_payload: bool = False
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


class PipelineConfig(StrictModel):
    """A whole pipeline. Subclass it with defaults of your own to ship a model's pipeline.

    Attributes:
        model_path: The checkpoint; given to every factory that takes a ``model_path``.
        stages: At least one, with unique names.
        name: The pipeline's name; ``model_path`` by default.
        entry_stage: The stage that requests enter; the first one by default.
        relay_backend: The relay of payloads between processes: ``shm``, ``nixl``, ``mooncake``, ``nccl``, or
            the dotted path of a relay's class.
        network_relay_backend: The relay between hosts if ``relay_backend`` stays within one.
        fused_stages: Chains of adjacent stages to keep in one process.
        runtime_overrides: Stage -> factory arguments merged over its ``factory_args``.
        env_defaults: Environment variables set before factories are imported, unless already set.
        endpoints: Addresses of the control plane's sockets.
        placement: Limits on what stages may share a GPU.
        placement_policy: Dotted path of a class with ``validate(config, plan)``.
        watchdog: Limits after which a process counts as hung or broken and is replaced.
        terminal_stages_fn: ``(request)`` -> the terminal stages that answer it, or None for all.
        serves: What the pipeline does for the server's callers.
        config_cls: The class of this config, by which a saved one is loaded. Filled in by itself.
    """

    model_path: str = ""
    stages: list[StageConfig]
    name: str | None = None
    entry_stage: str | None = None
    relay_backend: str = "shm"
    network_relay_backend: str = "nixl"
    fused_stages: list[list[str]] = Field(default_factory=list)
    runtime_overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)
    env_defaults: dict[str, str] = Field(default_factory=dict)
    endpoints: EndpointsConfig = Field(default_factory=EndpointsConfig)
    placement: PlacementConfig = Field(default_factory=PlacementConfig)
    placement_policy: str | None = None
    watchdog: WatchdogConfig = Field(default_factory=WatchdogConfig)
    terminal_stages_fn: str | None = None
    serves: ServesConfig = Field(default_factory=ServesConfig)
    config_cls: str | None = None

    @field_validator("env_defaults", mode="before")
    @classmethod
    def _stringify_numbers(cls, value: Any) -> Any:
        # OMP_NUM_THREADS: 8 is a number to YAML.
        if not isinstance(value, dict):
            return value
        return {
            k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v
            for k, v in value.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _fold_legacy_fields(cls, data: Any) -> Any:
        """Move terminal stages and GPUs, which the legacy form lists beside the stages, into the stages."""
        if not isinstance(data, dict) or not data.keys() & {"terminal_stages", "gpu_placement"}:
            return data
        data = dict(data)
        terminal = data.pop("terminal_stages", None) or []
        gpus = data.pop("gpu_placement", None) or {}
        stages = [
            stage.model_dump(exclude_unset=True) if isinstance(stage, StageConfig) else dict(stage)
            for stage in data.get("stages", [])
        ]
        names = [str(stage.get("name")) for stage in stages]
        for field, listed in (("terminal_stages", terminal), ("gpu_placement", gpus)):
            refuse_unknown_stages(field, listed, names)
        for stage in stages:
            if stage.get("name") in terminal:
                stage["terminal"] = True
            if (name := stage.get("name")) in gpus and stage.setdefault("gpu", gpus[name]) != gpus[name]:
                raise ValueError(
                    f"stage {name!r}: gpu={stage['gpu']} conflicts with gpu_placement, which says "
                    f"{gpus[name]}; set one of them"
                )
        return {**data, "stages": stages}

    @model_validator(mode="after")
    def _finish(self) -> Self:
        validate_pipeline(self)
        cls = type(self)
        self.config_cls = cls.__name__ if cls is PipelineConfig else f"{cls.__module__}.{cls.__qualname__}"
        if self.name is None:
            self.name = self.model_path or "pipeline"
        return self

    @property
    def resolved_entry_stage(self) -> str:
        """The stage that requests enter."""
        return self.entry_stage if self.entry_stage is not None else self.stages[0].name

    @property
    def terminal_stages(self) -> list[str]:
        """Names of the terminal stages, in config order."""
        return [stage.name for stage in self.stages if stage.terminal]

    @property
    def gpu_placement(self) -> dict[str, int | list[int]]:
        """Stage -> its GPU, or its GPUs by rank. Stages on the CPU are absent."""
        return {stage.name: stage.gpu for stage in self.stages if stage.gpu is not None}

    @property
    def is_legacy(self) -> bool:
        """True if every stage is given as ``executor`` and ``get_next``."""
        return all(stage.is_legacy for stage in self.stages)

    def stage(self, name: str) -> StageConfig:
        """The stage called ``name``.

        Raises:
            KeyError: There is none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PipelineConfig:
        """The config in a plain mapping, as the class its ``config_cls`` names.

        Raises:
            ValidationError: The mapping breaks a rule.
            ImportError: ``config_cls`` names no class.
            TypeError: ``config_cls`` names another kind of class.
        """
        found = find_config_cls(data.get("config_cls"), default=cls, root=PipelineConfig)
        return found.model_validate(data)
