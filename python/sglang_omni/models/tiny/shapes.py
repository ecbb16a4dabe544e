"""The sizes of random checkpoints: fields of a dataclass, each an option of ``make-tiny-checkpoint``."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, text: str) -> Any:
    """A field of a shape, with what ``--help`` says of it."""
    return field(default=default, metadata={"help": text})
