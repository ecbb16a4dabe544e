"""Other packages: how those of an extra are installed, and which versions were tried.

The range of each is in ``pyproject.toml``; ``make test-versions`` runs both of its ends.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
from functools import cache

logger = logging.getLogger(__name__)

# The name of the wheel. ``sglang-omni``, as the import name suggests, is another project's on PyPI.
DISTRIBUTION = "sgl-omni"

# The newest minor versions that were tried, of what is used beyond its documented names.
TRIED = {"torch": "2.15", "transformers": "5.23"}


def install_line(extra: str) -> str:
    """The command that adds an extra of this package to the environment that this package is installed in.

    pip and uv take the distribution from that environment and fetch only what the extra needs, so this
    works for a wheel that no index has.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@cache
def warn_of_untried() -> None:
    """Logs, once a process, which installed packages are newer than was tried. Imports none of them."""
    for name, tried in TRIED.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if _minor(version) > _minor(tried):
            logger.warning(
                "%s %s is newer than %s, the newest that this version of sgl-omni was tried with. If a model "
                "fails or answers wrongly, install an older one: pip install '%s==%s.*'",
                *(name, version, tried, name, tried),
            )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
