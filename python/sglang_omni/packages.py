"""Other packages: how those of an extra are installed."""

from __future__ import annotations

# The name of the wheel. ``sglang-omni``, as the import name suggests, is another project's on PyPI.
DISTRIBUTION = "sgl-omni"


def install_line(extra: str) -> str:
    """The command that adds an extra of this package to the environment that this package is installed in.

    pip and uv take the distribution from that environment and fetch only what the extra needs, so this
    works for a wheel that no index has.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"
