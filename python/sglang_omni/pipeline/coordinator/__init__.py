"""The coordinator's room: the server's side of a pipeline, which follows every request to its end."""

from sglang_omni.pipeline.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
