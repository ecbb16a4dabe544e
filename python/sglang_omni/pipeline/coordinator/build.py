"""Builds a pipeline's Coordinator from its config."""

from __future__ import annotations

from sglang_omni.config.imports import import_callable
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.transport.keys import RunKeys


def build_coordinator(
    config: PipelineConfig,
    endpoints: dict[str, str],
    *,
    keys: RunKeys | None = None,
    host_address: str | None = None,
) -> Coordinator:
    """Builds the pipeline's coordinator, with no stage registered.

    Args:
        config: The pipeline's.
        endpoints: Has the coordinator's own as ``"completion"`` and ``"abort"``.
        keys: The run's keys, for ``tcp://`` sockets.
        host_address: The address at which stages on other hosts reach the coordinator.

    Raises:
        ImportError: ``terminal_stages_fn`` cannot be imported.
    """
    resolver = config.terminal_stages_fn
    return Coordinator(
        completion_endpoint=endpoints["completion"],
        abort_endpoint=endpoints["abort"],
        entry_stage=config.resolved_entry_stage,
        terminal_stages=config.terminal_stages or None,
        terminal_stages_resolver=import_callable(resolver, stage=None, field="terminal_stages_fn")
        if resolver
        else None,
        input_stage=config.input_stage,
        keys=keys,
        host_address=host_address,
    )
