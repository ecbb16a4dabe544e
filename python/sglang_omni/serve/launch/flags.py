"""What a flag of a command line is, and readers of flags' values."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sglang_omni.proto.kv_events import KvEventsConfig

Reader = Callable[[str], Any]

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:]+\]|[^\s/:@?#\[\]]+)(:\d{1,5})?")


class TakesFlags(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> Any: ...


class Section(NamedTuple):
    """Where ``--help`` lists a flag. Without a title: among the first."""

    title: str = ""
    about: str | None = None


@dataclass(frozen=True)
class Flag:
    """A flag of a command.

    Attributes:
        name: Its name in the parsed arguments; dashes stand for its underscores in ``option``.
        section: Where ``--help`` lists it.
        help: What it does, with its unit and default.
        type: Parses its value, and raises ArgumentTypeError; None if it takes no value.
        default: Its value where it is not given.
        metavar: What its value is, for ``--help``.
        choices: The values that it may have.
        several: True if it takes several values, and may be given again.
        repeated: True if it takes one value, and may be given again.
        also: Other spellings.
        replicas: True if a fleet's replicas are given it as the fleet was.
        argument: The argument of stages' factories that it sets.
        sets: What it sets that to, if it takes no value.
        join: Makes that of several values; may raise ValueError.
    """

    name: str
    section: Section
    help: str
    type: Reader | None = str
    default: Any = None
    metavar: str | None = None
    choices: Sequence[str] | None = None
    several: bool = False
    repeated: bool = False
    also: tuple[str, ...] = ()
    replicas: bool = False
    argument: str | None = None
    sets: Any = None
    join: Callable[[list[Any]], Any] = list

    @property
    def option(self) -> str:
        """As the command line has it."""
        return f"--{self.name.replace('_', '-')}"

    def add_to(self, parser: TakesFlags) -> None:
        """Adds it to a parser."""
        names = (self.option, *self.also)
        if self.type is None:
            parser.add_argument(*names, action="store_true", help=self.help)
            return
        settings: dict[str, Any] = {
            "type": self.type,
            "default": self.default,
            "help": self.help,
            "metavar": None if self.choices else self.metavar,
        }
        if self.choices:
            settings["choices"] = self.choices
        if self.several:
            settings |= {"nargs": "+", "action": "extend"}
        elif self.repeated:
            settings |= {"action": "append"}
        if self.several or self.repeated:
            # argparse adds to a copy of it.
            settings["default"] = [] if self.default == () else self.default
        parser.add_argument(*names, **settings)

    def argument_value(self, value: Any) -> Any:
        """What ``argument`` is set to by a parsed value."""
        if self.type is None:
            return self.sets
        return self.join(value) if self.several else value

    def words(self, value: Any) -> list[str]:
        """The words of a command line that give it this parsed value; none if it was not given."""
        if value is None or value is False:
            return []
        if self.type is None:
            return [self.option]
        values = value if self.several or self.repeated else [value]
        return [word for each in values for word in (self.option, str(each))]


def not_empty(text: str) -> str:
    """For ``type=``: an empty value is a shell's variable that is not set, and not a wish for the default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; leave it out for the default")
    return text


def kv_events(text: str) -> str:
    """For ``type=``: the JSON of ``KvEventsConfig``."""
    try:
        return KvEventsConfig.parse(text).to_json()
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def count(text: str) -> int:
    """For ``type=``: a whole number of at least 1."""
    return _whole(text, 1)


def count_or_any(text: str) -> int:
    """For ``type=``: a whole number of at least 1, or -1 for any."""
    return -1 if text == "-1" else count(text)


def count_or_none(text: str) -> int:
    """For ``type=``: a whole number of at least 0."""
    return _whole(text, 0)


def seconds(text: str, *, above_0: bool = False, or_inf: bool = False) -> float:
    """For ``type=``: a number of seconds of at least 0.

    Args:
        text: The flag's value.
        above_0: 0 is refused.
        or_inf: Infinity is allowed.
    """
    number = _number(text)
    if not (number > 0 if above_0 else number >= 0) or (number == math.inf and not or_inf):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds {'above 0' if above_0 else 'of 0 or more'}"
        )
    return number


def share(text: str) -> float:
    """For ``type=``: a number above 0, and at most 1."""
    number = _number(text)
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; give a number above 0, and at most 1")
    return number


def existing_file(text: str) -> str:
    """For ``type=``: the path of a file, from the root."""
    path = Path(not_empty(text)).expanduser()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return str(path.resolve())


def origin(text: str) -> str:
    """For ``type=``: a web page's origin, as browsers write it, or ``*``."""
    written = not_empty(text).strip().rstrip("/").lower()
    if written != "*" and not _ORIGIN.fullmatch(written):
        raise argparse.ArgumentTypeError(f"{text!r} is no origin, as https://example.org:8443 is one")
    return written


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
