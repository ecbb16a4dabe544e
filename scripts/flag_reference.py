"""Write docs/reference/flags.md: every command of `sgl-omni`, and all that it takes, as its parser says.

Run it after a change of a command line; a test compares its output with the committed file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from sglang_omni.cli.command_words import HANDED_ON, parser_of
from sglang_omni.cli.commands import COMMANDS
from sglang_omni.versions.argparse import groups_of, subparsers_of

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "reference" / "flags.md"
HEAD = """\
# Every flag

Every command of `sgl-omni`, with all its arguments, as `--help` shows them. [The command line](../cli.md)
says what each is for. `python -m sglang_omni.launch_server`, `launch_router` and `launch_host` are `serve`,
`route` and `host`.
"""


def text() -> str:
    """The page."""
    lines = [HEAD]
    for command in COMMANDS:
        lines += _section(f"sgl-omni {command.name}", parser_of(command.load(), []), "##")
        for name in HANDED_ON.get(command.name, ()):
            lines += _section(f"sgl-omni {command.name} {name}", parser_of(command.load(), [name]), "###")
    return "\n".join(lines)


def _section(name: str, parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    yield from (f"{level} `{name}`", "")
    if parser.description:
        yield from (" ".join(parser.description.split()), "")
    rows = list(_rows(parser))
    if rows:
        yield from ("| argument | what it does |", "|---|---|", *rows, "")
    for _, _, actions in groups_of(parser):
        for action in actions:
            for word, inner in (subparsers_of(action) or {}).items():
                yield from _section(f"{name} {word}", inner, "###")


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for title, about, actions in groups_of(parser):
        told = [
            each
            for each in actions
            if each.help != argparse.SUPPRESS
            and "--help" not in each.option_strings
            and subparsers_of(each) is None
        ]
        if told and title not in ("positional arguments", "options"):
            yield f"| **{title}** | {about} |"
        for each in told:
            assert each.help, f"{parser.prog}: {each.dest} has no help"
            yield f"| {_spelled(each)} | {_cell(_help(each))} |"


def _spelled(action: argparse.Action) -> str:
    names = action.option_strings
    value = action.metavar or action.dest.upper()
    if isinstance(value, tuple):
        value = " ".join(value)
    several = "..." if action.nargs in ("*", "+", argparse.REMAINDER) else ""
    if not names:
        return f"`{value}{several}`"
    own = max(names, key=len)
    also = "".join(f", `{name}`" for name in names if name != own)
    takes = "" if action.nargs == 0 else f" {value}{several}"
    return f"`{own}{takes}`{also}".replace("|", "\\|")


def _help(action: argparse.Action) -> str:
    said = str(action.help) % {**vars(action), "prog": "sgl-omni"}
    return f"{said}; one of {', '.join(map(str, action.choices))}" if action.choices else said


def _cell(said: str) -> str:
    return " ".join(said.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    OUTPUT.write_text(text(), encoding="utf-8")
    print(f"{OUTPUT} written", file=sys.stderr)
