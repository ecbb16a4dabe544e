"""The memory of the GPUs that a cascade's pipelines share, counted together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from sglang_omni.config.plan.memory import CountsMemory, MemoryDemand, fit_memory
from sglang_omni.config.plan.memory_plan import MemoryOfGpu, MemoryPlan
from sglang_omni.config.schema import PipelineConfig, StageConfig


class PipelinesOnGpus:
    """The stages of several pipelines, as far as ``config.memory`` looks at a config: a ``CountsMemory``.

    Args:
        pipelines: By their names, which with a dot precede those of the stages; an empty one does not.

    Attributes:
        stages: Copies of the stages.
        runtime_overrides: As of ``PipelineConfig``, by the new names.
    """

    def __init__(self, pipelines: Mapping[str, PipelineConfig]) -> None:
        self.stages: list[StageConfig] = []
        self.runtime_overrides: dict[str, dict[str, Any]] = {}
        self._from: dict[str, tuple[PipelineConfig, StageConfig]] = {}
        for name, pipeline in pipelines.items():
            for own in pipeline.stages:
                stage = own.model_copy(deep=True)
                stage.name = f"{name}.{own.name}" if name else own.name
                self.stages.append(stage)
                self._from[stage.name] = pipeline, own
                if overrides := pipeline.runtime_overrides.get(own.name):
                    self.runtime_overrides[stage.name] = overrides

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What the stage's own pipeline says."""
        pipeline, own = self._from[stage.name]
        return pipeline.memory_demand(own, args) if isinstance(pipeline, CountsMemory) else None

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """None: each pipeline has its own."""
        yield from ()

    def give_back(self) -> None:
        """Gives the pipelines' stages what ``fit_memory`` has set."""
        for stage in self.stages:
            _, own = self._from[stage.name]
            own.runtime, own.factory_args = stage.runtime, stage.factory_args


def fit_together(pipelines: Mapping[str, PipelineConfig], gpus: Sequence[MemoryOfGpu]) -> MemoryPlan | None:
    """``fit_memory`` of several pipelines, which share the GPUs.

    Raises:
        FileNotFoundError, ValueError: A checkpoint cannot be read.
    """
    counted = PipelinesOnGpus(pipelines)
    plan = fit_memory(cast(PipelineConfig, counted), gpus)
    if plan is not None and plan.fits:
        counted.give_back()
    return plan
