"""Other packages: the command that installs an extra, and the newest tried versions.

``pyproject.toml`` has the range of each; ``make test-versions`` runs both ends.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence

# The name of the wheel. ``sglang-omni``, as the import name suggests, is another project's on PyPI.
DISTRIBUTION = "sgl-omni"

# The newest tried minor versions of packages of which undocumented names are used.
TRIED = {"torch": "2.15", "transformers": "5.24"}


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


def untried(name: str, version: str) -> str | None:
    """What to say of an installed package that is newer than tried; None if it was tried.

    Args:
        name: One of ``TRIED``, or another package, of which nothing is said.
        version: The installed version.
    """
    tried = TRIED.get(name)
    if tried is None or _minor(version) <= _minor(tried):
        return None
    return f"newer than {tried}, the newest that this version of {DISTRIBUTION} was tried with"


def tried_line(name: str) -> str:
    """The command that installs the newest tried version of one of ``TRIED``, and when to run it."""
    return f"pip install '{name}=={TRIED[name]}.*' if a model fails or answers wrongly"


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
