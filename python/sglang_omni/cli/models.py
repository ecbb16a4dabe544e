"""``sgl-omni models``: what a running server serves, or which families this installation could."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sglang_omni.cli.connection import add_connection_flags, connect, run
from sglang_omni.command_line import CommandParser

if TYPE_CHECKING:
    from sglang_omni.families import Family
    from sglang_omni.serve.launch.registry import InstalledFamily


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints a table, or JSON; returns the exit status."""
    parser = CommandParser(
        prog=prog,
        description="List what a server serves. If none runs, or with --local: the families of models that "
        "this installation serves, and with what the answers of each were compared.",
    )
    parser.add_argument("--local", action="store_true", help="ask no server; list the families of models")
    parser.add_argument("--json", action="store_true", help="print JSON, with all that is known of each")
    add_connection_flags(parser, with_model=False)
    args = parser.parse_args(argv)
    return run(prog, lambda: _families(args) if args.local else _served(args))


def _served(args: argparse.Namespace) -> int:
    from sglang_omni.client import ServerUnreachable

    try:
        with connect(args) as client:
            models = client.models()
    except ServerUnreachable as exc:
        print(f"{exc}. What `sgl-omni serve MODEL` can serve here:\n", file=sys.stderr)
        return _families(args)
    if args.json:
        _print_json([asdict(model) for model in models])
        return 0
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


def _families(args: argparse.Namespace) -> int:
    from sglang_omni.packages import missing
    from sglang_omni.serve.launch.registry import families

    found = families()
    absent = {each.family.name: missing(dict(each.family.packages)) for each in found}
    if args.json:
        _print_json([_fields(each, absent[each.family.name]) for each in found])
        return 0
    print("\n\n".join(_entry(each.family) for each in found))
    for each in found:
        if each.problem:
            print(f"\n{each.family.name}: {each.problem}")
        for command, modules in absent[each.family.name].items():
            print(f"\n{each.family.name} lacks {', '.join(modules)} here:\n  {command}")
    return 0


def _entry(family: Family) -> str:
    # The bundled model is no checkpoint; of a family that names none, the pipeline runs from Python alone.
    checkpoints = ", ".join(family.checkpoints) or (
        "bundled as speech-chat" if family.name == "speech_chat" else "from Python"
    )
    if family.marks:
        checkpoints = f"those with {_listed(family.marks)} in config.json"
    lines = (
        f"{_listed(family.takes)} -> {_listed(family.gives)}; tasks: {_listed(family.tasks or ['none'])}",
        f"checkpoints: {checkpoints}",
        f"engines: {_listed(family.engines or ['none'])}; proved against: {family.proved_against or '?'}",
    )
    return f"{family.name}\n" + "\n".join(f"  {line}" for line in lines)


def _fields(each: InstalledFamily, absent: dict[str, list[str]]) -> dict[str, Any]:
    return {**asdict(each.family), "owner": each.owner, "problem": each.problem, "missing": absent}


def _print_json(value: list[dict[str, Any]]) -> None:
    print(json.dumps(value, indent=1))


def _listed(names: Sequence[str] | None) -> str:
    return ", ".join(names) if names else "?"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
