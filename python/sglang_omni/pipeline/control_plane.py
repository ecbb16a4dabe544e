"""Contract: existing code imports the control planes from this path."""

from sglang_omni.pipeline.transport.control_plane import CoordinatorControlPlane, StageControlPlane

__all__ = ["CoordinatorControlPlane", "StageControlPlane"]
