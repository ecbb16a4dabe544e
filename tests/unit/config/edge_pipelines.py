"""Pipelines and relays for tests of edges."""

from __future__ import annotations

from typing import Any

from sglang_omni.config import Edge, ExecutorConfig, PipelineConfig, StageConfig, plan_edges, plan_pipeline
from sglang_omni.relay import Relay

NETWORKED = ["nixl", "mooncake", "nccl"]


class Lending(Relay):
    """A relay from outside the package that lends tensors and reaches other hosts."""

    lends_tensors = True


class Near(Relay):
    crosses_hosts = False


class Ranked(Lending):
    def __init__(self, engine_id: str, rank: int, world_size: int, device: str) -> None: ...


LENDING, NEAR, RANKED = (f"{__name__}.{cls.__name__}" for cls in (Lending, Near, Ranked))


def make(gpu_id: int | None = None) -> None: ...


FACTORY = f"{__name__}.make"


def stage(name: str, *targets: str, **fields: Any) -> StageConfig:
    """A stage in a process of its own that hands on to ``targets``, or to the caller."""
    if fields.get("tp_size", 1) == 1:
        fields.setdefault("process", name)
    following = {"next": list(targets)} if targets else {"terminal": True}
    return StageConfig(name=name, factory=FACTORY, **(following | fields))


def legacy(name: str, **fields: Any) -> StageConfig:
    """A stage of the legacy form, which names a function that decides the route."""
    executor = ExecutorConfig(factory="pkg.make")
    return StageConfig(**{"name": name, "executor": executor, "get_next": "pkg.next", **fields})


def pipeline(*stages: StageConfig, **fields: Any) -> PipelineConfig:
    return PipelineConfig(model_path="m", stages=list(stages), **fields)


def edges_of(config: PipelineConfig, process_of: dict[str, str] | None = None) -> list[Edge]:
    return plan_pipeline(config).edges if process_of is None else plan_edges(config, process_of)
