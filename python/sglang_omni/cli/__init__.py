"""The command ``sgl-omni``: finds the command that is asked for, and imports that one alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sglang_omni.cli.commands import COMMANDS, Command
from sglang_omni.command_line import CommandParser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``sgl-omni ARGUMENTS``; returns the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        command = _named(args[0]) if args else None
        if command is None:
            return _explain(args)
        return command.load()(args[1:], prog=f"sgl-omni {command.name}")
    except KeyboardInterrupt:
        # Running servers handle signals themselves; before, imports take seconds.
        return 130


def _named(name: str) -> Command | None:
    return next((command for command in COMMANDS if command.name == name), None)


def _explain(args: list[str]) -> int:
    """``--help``, ``--version``, and what names no command."""
    from sglang_omni._core import __version__

    parser = CommandParser(
        prog="sgl-omni",
        description="Serve omni models as pipelines of stages, behind a cache-aware router.",
        epilog="sgl-omni COMMAND --help lists a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"sgl-omni {__version__}")
    names = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        names.add_parser(command.name, help=command.help, add_help=False)
    parser.parse_args(args)
    raise AssertionError(f"{args} names a command")
