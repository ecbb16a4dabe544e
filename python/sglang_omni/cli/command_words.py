"""What may follow each command of ``sgl-omni``, as the commands' own parsers say it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from sglang_omni.cli.commands import COMMANDS, CommandMain
from sglang_omni.cli.tiny_checkpoint import MAKERS
from sglang_omni.versions.argparse import arguments_of, subparsers_of

# Commands that hand what follows a first word on to parsers of their own.
HANDED_ON = {
    "route": {"top": "show a router's workers, live"},
    "make-tiny-checkpoint": {name: f"of the family {name}" for name in MAKERS},
}
_LONGEST_HELP = 70


@dataclass
class Words:
    """What may follow a command.

    Attributes:
        commands: Its subcommands and the choices of its arguments, with what they do.
        options: Its long options, with what they do.
        values: The choices of options that have some.
        free: Options that take any value.
    """

    commands: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[str]] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)


def words_of_all() -> dict[str, Words]:
    """By the words of a command: ``""``, ``"serve"``, ``"config view"``."""
    top = Words({command.name: command.help for command in COMMANDS}, {"--help": "", "--version": ""})
    found = {"": top}
    for command in COMMANDS:
        _add(found, command.name, parser_of(command.load(), []))
        for name, text in HANDED_ON.get(command.name, {}).items():
            found[command.name].commands[name] = text
            _add(found, f"{command.name} {name}", parser_of(command.load(), [name]))
    return found


class _Caught(BaseException):
    """Carries a parser out of the command that was about to parse with it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(run: CommandMain, argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command, caught when the command parses.

    Args:
        run: The command's ``main``.
        argv: The words that lead to the parser.

    Raises:
        TypeError: It ended without parsing.
    """
    with _caught_when_parsing():
        try:
            run(argv, prog="sgl-omni")
        except _Caught as caught:
            return caught.parser
    raise TypeError(f"{run} parses its command line otherwise than with an ArgumentParser")


@contextmanager
def _caught_when_parsing() -> Iterator[None]:
    def catch(self: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _Caught(self)

    own = argparse.ArgumentParser.parse_args
    try:
        setattr(argparse.ArgumentParser, "parse_args", catch)  # noqa: B010  # mypy refuses an assignment
        yield
    finally:
        setattr(argparse.ArgumentParser, "parse_args", own)  # noqa: B010


def _add(found: dict[str, Words], path: str, parser: argparse.ArgumentParser) -> None:
    words = found.setdefault(path, Words())
    for action in arguments_of(parser):
        if action.help == argparse.SUPPRESS:
            continue
        choices = [str(choice) for choice in action.choices or ()]
        if not action.option_strings:
            words.commands.update(dict.fromkeys(choices, ""))
        for name, inner in (subparsers_of(action) or {}).items():
            words.commands[name] = _short(inner.description or "")
            _add(found, f"{path} {name}", inner)
        for option in (name for name in action.option_strings if name.startswith("--")):
            words.options[option] = _short(action.help or "")
            if choices:
                words.values[option] = choices
            elif action.nargs != 0:
                words.free.add(option)


def _short(text: str) -> str:
    short = text.replace("%%", "%").partition(";")[0].partition(" (default")[0]
    return short if len(short) <= _LONGEST_HELP else f"{short[: _LONGEST_HELP - 3]}..."
