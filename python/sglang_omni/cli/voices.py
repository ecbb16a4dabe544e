"""``sgl-omni voices``: the voices of a server's model."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_omni.cli.connection import add_connection_flags, connect, run
from sglang_omni.command_line import CommandParser


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints a voice a line; returns the exit status."""
    parser = CommandParser(
        prog=prog, description="List the voices of a server's model, for --voice of `say` and `chat`."
    )
    add_connection_flags(parser, with_model=False)
    args = parser.parse_args(argv)

    def show() -> int:
        with connect(args) as client:
            for voice in client.voices().voices:
                print(voice)
        return 0

    return run(prog, show)
