"""Control planes. Contract: existing code imports from this path."""

from sglang_omni.pipeline.transport.control_plane import CoordinatorControlPlane, StageControlPlane

__all__ = ["CoordinatorControlPlane", "StageControlPlane"]
