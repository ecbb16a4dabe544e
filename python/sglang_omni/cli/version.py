"""``sgl-omni version``."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_omni._core import __version__
from sglang_omni.command_line import CommandParser


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints the version."""
    CommandParser(prog=prog, description="Print the version.").parse_args(argv)
    print(f"sgl-omni {__version__}")
    return 0
