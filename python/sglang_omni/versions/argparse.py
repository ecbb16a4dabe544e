"""What a parser of command lines takes.

argparse has public names for none of it. These are as they are since Python 2.7, and completers of shells
(argcomplete, shtab) live on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Every option and positional argument, in the order in which they were added."""
    return list(parser._actions)


def subparsers_of(action: argparse.Action) -> Mapping[str, argparse.ArgumentParser] | None:
    """The parser of each command, for the argument that chooses the command; None for any other argument."""
    if not isinstance(action, argparse._SubParsersAction):
        return None
    return action.choices


def groups_of(parser: argparse.ArgumentParser) -> list[tuple[str, str, list[argparse.Action]]]:
    """The title and the description of each group, as the help shows them, and what is in it."""
    return [
        (group.title or "", group.description or "", list(group._group_actions))
        for group in parser._action_groups
    ]
