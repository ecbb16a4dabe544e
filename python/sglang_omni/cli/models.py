"""``sgl-omni models``: what a running server serves, or what this installation could."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sglang_omni.cli.connection import add_connection_flags, connect, run
from sglang_omni.command_line import CommandParser


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints a table; returns the exit status."""
    parser = CommandParser(
        prog=prog,
        description="List what a server serves. If none runs, or with --local: what this installation can.",
    )
    parser.add_argument(
        "--local", action="store_true", help="ask no server; list the pipelines that are installed here"
    )
    add_connection_flags(parser, with_model=False)
    args = parser.parse_args(argv)
    return run(prog, lambda: _installed() if args.local else _served(args))


def _served(args: argparse.Namespace) -> int:
    from sglang_omni.client import ServerUnreachable

    try:
        with connect(args) as client:
            models = client.models()
    except ServerUnreachable as exc:
        print(f"{exc}. What `sgl-omni serve MODEL` can serve here:\n", file=sys.stderr)
        return _installed()
    _print_table(
        [
            ("MODEL", "TASKS", "TAKES", "GIVES"),
            *(
                (
                    model.id,
                    _listed(model.tasks),
                    _listed(model.input_modalities),
                    _listed(model.output_modalities),
                )
                for model in models
            ),
        ]
    )
    return 0


def _installed() -> int:
    from sglang_omni.serve.launch.pipelines import DEFAULT_MODEL
    from sglang_omni.serve.launch.registry import pipelines

    print(f"{DEFAULT_MODEL} is bundled. Checkpoints are served by their architecture or model_type:\n")
    rows = [(each.name, each.owner, each.target.replace(":", ".")) for each in pipelines()]
    _print_table([("CHECKPOINT", "PIPELINE OF", "CONFIG"), *rows])
    return 0


def _listed(names: list[str] | None) -> str:
    return "?" if names is None else ", ".join(names)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
