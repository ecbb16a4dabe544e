"""The coordinator runs in the server: it sends requests to the stages and follows each to its end."""

from sglang_omni.pipeline.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
