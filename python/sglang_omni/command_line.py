"""The parser of every command line: nothing is abbreviated, and an error says what was probably meant.

Imports the standard library only: the router's commands use it too.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from sglang_omni.versions.argparse import arguments_of

# "--polcy" is near "--policy"; "--text-only" is near nothing.
_NEAR = 0.75
# As argparse writes it: quotes around the choices or none, by its version.
_WRONG_CHOICE = re.compile(r"(?P<what>.*): invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)")

_IN_OUR_WORDS = (
    (re.compile(r"invalid int value: (.*)"), r"\1 is not a whole number"),
    (re.compile(r"invalid float value: (.*)"), r"\1 is not a number"),
    (re.compile(r"expected one argument$"), "needs a value"),
    (re.compile(r"expected at least one argument$"), "needs at least one value"),
)


class CommandParser(argparse.ArgumentParser):
    """Ends the program with status 2 for a wrong usage, after a sentence and the command that explains it.

    Abbreviations of options are refused: a new option could make one ambiguous. Parsers of its subcommands
    are of this kind, too.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses what is unknown itself: the parser of a subcommand knows best what was meant."""
        self._given = list(sys.argv[1:] if args is None else args)
        space, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}")
        return space, []

    def error(self, message: str) -> NoReturn:
        """
        Args:
            message: What is wrong. If it is argparse's own, it is said in our words.
        """
        if message.startswith("the following arguments are required") and (unknown := self._unknown_option()):
            # What is missing was probably given under a wrong name.
            message = f"unrecognized arguments: {unknown}{self._meant(unknown)}"
        message = message.removeprefix("argument ")
        for pattern, words in _IN_OUR_WORDS:
            message = pattern.sub(words, message)
        if wrong := _WRONG_CHOICE.fullmatch(message):
            choices = re.findall(r"[^', ]+", wrong["choices"])
            message = f"{wrong['what']}: {not_one_of(wrong['given'], choices)}"
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help says more\n")

    def options(self) -> list[str]:
        """The long options in all spellings, without those that the help leaves out."""
        return [
            name
            for action in arguments_of(self)
            if action.help != argparse.SUPPRESS
            for name in action.option_strings
            if name.startswith("--")
        ]

    def _unknown_option(self) -> str | None:
        known = {name for action in arguments_of(self) for name in action.option_strings}
        names = (word.partition("=")[0] for word in self._given)
        return next((name for name in names if name.startswith("--") and name not in known), None)

    def _meant(self, unknown: str) -> str:
        meant = meant_option(unknown.partition("=")[0], self.options())
        return f"; did you mean {meant}?" if meant else ""


def not_one_of(given: str, choices: Sequence[str]) -> str:
    """A sentence for a value that is none of the choices, with the one that is near, if one is."""
    near = meant_word(given, choices)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{given!r} is none of {', '.join(choices)}{hint}"


def meant_word(given: str, known: Iterable[str]) -> str | None:
    """The known word that ``given`` may be a misspelling of; None if none is near."""
    by_letters = {word.replace("-", "").replace("_", "").lower(): word for word in known}
    letters = given.replace("-", "").replace("_", "").lower()
    found = difflib.get_close_matches(letters, by_letters, n=1, cutoff=_NEAR)
    return by_letters[found[0]] if found else None


def meant_option(given: str, known: Sequence[str]) -> str | None:
    """The known option nearest to an unknown one; None if none is near.

    An option of the same name with a prefix comes first: ``--router-api-key`` for ``--api-key``.
    """
    name = given.lstrip("-")
    if not name or not given.startswith("-"):
        return None
    prefixed = [option for option in known if option.endswith(f"-{name}")]
    return min(prefixed, key=len) if prefixed else meant_word(given, known)
