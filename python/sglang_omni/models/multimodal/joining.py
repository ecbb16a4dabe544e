"""Kept for saved configs; the function is in ``models.omni.embedding_merge``."""

from sglang_omni.models.omni.embedding_merge import merge_sources

__all__ = ["merge_sources"]
