"""Command-line flags of the router, one for each field of `RouterConfig`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from sglang_omni._core import router_policies
from sglang_omni.router.config import RouterConfig


def add_flags(parser: argparse.ArgumentParser, *, prefix: str = "", without: Collection[str] = ()) -> None:
    """Adds the flags, in a group for each section. The parsed arguments have only flags that were given.

    Args:
        prefix: Precedes each flag's name and destination, such as "router-".
        without: Fields without a flag.
    """
    groups: dict[str, Any] = {}
    for each, kind in options():
        if each.name in without:
            continue
        section = each.metadata["section"]
        if section not in groups:
            groups[section] = parser.add_argument_group(f"router: {section}" if prefix else section)
        names = [f"--{prefix}{name}" for name in flag_names(each)]
        settings: dict[str, Any] = {
            "dest": prefix.replace("-", "_") + each.name,
            "default": argparse.SUPPRESS,
            "help": _help(each),
        }
        groups[section].add_argument(*names, **settings, **_reading(each, kind))


def options() -> Iterator[tuple[Field[Any], Any]]:
    """Every field of `RouterConfig` with its type."""
    kinds = get_type_hints(RouterConfig)
    for each in fields(RouterConfig):
        yield each, kinds[each.name]


def flag_names(each: Field[Any]) -> list[str]:
    """The flag's spellings without leading dashes, the field's own first."""
    names = [each.name.replace("_", "-")]
    if each.metadata["also"]:
        names.append(each.metadata["also"].removeprefix("--"))
    return names


def default_text(each: Field[Any]) -> str:
    """The default as typed in a command; empty if there is none."""
    if each.default_factory is not MISSING:
        return " ".join(each.default_factory())
    if each.default is None or each.default is False:
        return ""
    return f"{each.default:.12g}" if isinstance(each.default, float) else str(each.default)


def _help(each: Field[Any]) -> str:
    default = default_text(each)
    text = each.metadata["help"].replace("%", "%%")
    return f"{text} (default: {default})" if default else text


def _reading(each: Field[Any], kind: Any) -> dict[str, Any]:
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction if each.default else "store_true"}
    reading: dict[str, Any] = {"metavar": each.metadata["metavar"] or each.name.upper()}
    if each.name == "policy":
        return reading | {"choices": router_policies(), "metavar": None}
    if each.name == "port" or each.name.endswith("_port"):
        return reading | {"type": port}
    if kind == list[str]:
        return reading | {"nargs": "*"}
    if kind is int:
        return reading | {"type": _count}
    if kind == int | None:
        return reading | {"type": _limit}
    if kind in (float, float | None):
        return reading | {"type": float}
    if kind in (str, str | None):
        return reading
    raise TypeError(f"RouterConfig.{each.name}: no flag can have the type {kind}")


def port(text: str) -> int:
    """Parses a port, or 0 for a free one; for ``type=`` of argparse."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give 0 to 65535")
    return int(text)


def _limit(text: str) -> int | None:
    return None if text == "-1" else _count(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)
