"""``LocalStageDispatcher``. Contract: existing code imports from this path."""

from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher

__all__ = ["LocalStageDispatcher"]
