"""Samples and encoded sound, for programs: the same as ``sglang_omni.generation.audio``."""

from sglang_omni.generation.audio import *  # noqa: F403
from sglang_omni.generation.audio import __all__ as __all__
