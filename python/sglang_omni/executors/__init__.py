"""The contract's path to the executors, whose code is in ``compat.executors``."""

from sglang_omni.compat.executors import *  # noqa: F403
from sglang_omni.compat.executors import __all__ as __all__
