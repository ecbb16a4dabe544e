"""The fields of a pipeline's config, and the rules of its graph.

Every field is assignable after construction. ``validate_pipeline`` and the functions that make plans
(``build_stage_placement_plan``, ``build_process_topology_plan``) check assignments.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from sglang_omni.config.nearest import did_you_mean
from sglang_omni.config.schema.config_cls import find_config_cls
from sglang_omni.config.schema.relay_backends import refuse_unknown_backend, refuse_unknown_options
from sglang_omni.config.schema.rules import check_stage, refuse_unknown_stages
from sglang_omni.config.schema.serves import ServesConfig
from sglang_omni.config.schema.stage import StageConfig
from sglang_omni.config.schema.strict import Integer, Number, StrictModel
from sglang_omni.config.schema.watchdog import WatchdogConfig


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
        preload: Modules that the stages' processes on one host are forked with, so that they are imported
            once. They may neither start threads nor use a GPU when they are imported.
    """

    preload: ClassVar[tuple[str, ...]] = ()

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
    def input_stage(self) -> str | None:
        """The stage that gets what callers add to the input of requests that run; None if there is none."""
        return next((stage.name for stage in self.stages if stage.takes_input), None)

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


def validate_pipeline(config: PipelineConfig) -> None:
    """Check every rule of the pipeline's graph.

    Raises:
        ValueError: The first broken rule, with the stage and the field.
    """
    if not config.stages:
        raise ValueError("stages: a pipeline needs at least one stage")
    names = [stage.name for stage in config.stages]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"stage {name!r}: name is used {names.count(name)} times; stage names must be unique"
            )
    if not config.model_path and not config.is_legacy:
        raise ValueError("model_path is required")
    if config.resolved_entry_stage not in names:
        raise ValueError(
            f"entry_stage {config.entry_stage!r} is not defined"
            f"{did_you_mean(config.resolved_entry_stage, names)}"
        )
    for field in ("relay_backend", "network_relay_backend"):
        refuse_unknown_backend(field, getattr(config, field))
    _check_endpoints(config.endpoints)
    for stage in config.stages:
        check_stage(stage, names)
    for stage in config.stages:
        _check_relay_options(stage, config)
    if not any(stage.terminal or stage.get_next is not None for stage in config.stages):
        raise ValueError("stages: none is terminal, so no request would ever be answered")
    if len(takers := [stage.name for stage in config.stages if stage.takes_input]) > 1:
        raise ValueError(f"stages: takes_input is set for {takers}; a pipeline has one such stage")
    refuse_unknown_stages("runtime_overrides", config.runtime_overrides, names)
    missing = [s.name for s in config.stages if not s.is_legacy and s.tp_size == 1 and not s.process]
    if missing:
        raise ValueError(
            f"Non-TP stages must declare process; missing for {missing}. "
            "Stages that name the same process share it"
        )
    _check_fusion(config, names)


def _check_endpoints(endpoints: EndpointsConfig) -> None:
    if endpoints.scheme == "tcp":
        return
    for field in ("host", "base_port"):
        # A dumped config holds every field, so a field at its default counts as not set.
        if getattr(endpoints, field) != type(endpoints).model_fields[field].default:
            raise ValueError(
                f"endpoints: {field}={getattr(endpoints, field)!r} is of scheme 'tcp', but scheme is "
                f"{endpoints.scheme!r}, whose sockets are files in base_path; set scheme to 'tcp', or leave "
                f"{field} out"
            )


def _check_relay_options(stage: StageConfig, config: PipelineConfig) -> None:
    if stage.relay is None:
        return
    chosen = [other.edge_relays.get(stage.name) for other in config.stages]
    backends = {config.relay_backend, config.network_relay_backend, *stage.edge_relays.values()}
    backends |= {backend for backend in chosen if backend is not None}
    where = f"stage {stage.name!r}: relay.backend_options"
    refuse_unknown_options(where, stage.relay.backend_options, backends)


def _check_fusion(config: PipelineConfig, names: list[str]) -> None:
    index = {name: i for i, name in enumerate(names)}
    for group in config.fused_stages:
        refuse_unknown_stages("fused_stages", group, names)
        if len(group) < 2:
            raise ValueError(f"fused_stages: group {group} needs at least two stages")
        if [index[name] for name in group] != list(range(index[group[0]], index[group[0]] + len(group))):
            raise ValueError(
                f"fused_stages: group {group} must name adjacent stages in the order of 'stages'"
            )
        members = [config.stages[index[name]] for name in group]
        for stage in members:
            if stage.tp_size > 1:
                raise ValueError(f"fused_stages: group {group} cannot include TP stage {stage.name!r}")
        gpus = sorted({gpu for stage in members for gpu in stage.gpu_ids})
        if len(gpus) > 1:
            raise ValueError(f"fused_stages: group {group} spans multiple GPUs {gpus}; it must fit on one")
        for stage, successor in zip(members, group[1:], strict=False):
            if stage.get_next is not None:
                continue  # get_next decides at run time where the stage routes
            if stage.next_stages != [successor] or stage.route_fn is not None:
                raise ValueError(
                    f"fused_stages: group {group} must be linear: stage {stage.name!r} must route only to "
                    f"{successor!r}"
                )
        for stage in members[1:]:
            if stage.wait_for:
                raise ValueError(
                    f"fused_stages: group {group} cannot include fan-in stage {stage.name!r} inside"
                )
