"""Other packages: the command that installs an extra, and the newest tried versions.

``pyproject.toml`` has the range of each; ``make test-versions`` runs both ends.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache

logger = logging.getLogger(__name__)

# The name of the wheel. ``sglang-omni``, as the import name suggests, is another project's on PyPI.
DISTRIBUTION = "sgl-omni"

# The newest tried minor versions of packages of which undocumented names are used.
TRIED = {"torch": "2.15", "transformers": "5.23"}


def install_line(extra: str) -> str:
    """The command that adds an extra of this package to the environment in which the package is installed.

    pip and uv take the package from that environment and fetch only what the extra needs, so the command
    works for a wheel that is in no index.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing(required: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The modules that are not installed, by the command that installs them; empty if all are.

    Args:
        required: Top-level modules by that command.
    """
    absent = {
        command: [name for name in modules if importlib.util.find_spec(name) is None]
        for command, modules in required.items()
    }
    return {command: modules for command, modules in absent.items() if modules}


@cache
def warn_of_untried() -> None:
    """Logs, once in a process, which installed packages are newer than tried, without importing them."""
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
