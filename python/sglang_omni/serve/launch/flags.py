"""Readers of flags' values, and the one way in which a fleet passes flags on to its replicas."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from typing import Any, Protocol


class TakesFlags(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> Any: ...


def not_empty(text: str) -> str:
    """For ``type=``: an empty value is a shell's variable that is not set, and not a wish for the default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; leave it out for the default")
    return text


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


def passed_on(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Flags as they were given, for a process that must have the same.

    Args:
        args: The parsed flags. True stands for a flag without a value, a list for one that is repeated;
            None and False for one that was not given.
        names: Their names, as ``args`` has them.
    """
    words: list[str] = []
    for name in names:
        flag, value = f"--{name.replace('_', '-')}", getattr(args, name)
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            for each in value if isinstance(value, list) else [value]:
                words += [flag, str(each)]
    return words


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
