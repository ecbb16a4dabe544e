"""Kept for saved configs; the functions are in ``models.omni.decode``."""

from sglang_omni.models.omni.decode import decode, merge_sources

__all__ = ["decode", "merge_sources"]
