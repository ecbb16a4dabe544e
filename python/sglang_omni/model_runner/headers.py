"""Builds stages from the headers of their weights alone, to find what a checkpoint lacks before it is loaded.

Inside of ``headers_only`` the loaders run as they are: a ``Checkpoint`` gives tensors of the meta device, and
notes what it would refuse. So no second list of names is kept. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

DEVICE = "meta"


class NotCompared(Exception):
    """The tensors of a stage are read by code of others, which says itself what it wants."""


@dataclass
class HeaderReport:
    """What loaders would refuse.

    Attributes:
        taken: How many tensors they took.
        device: Where the last stage would be: ``"cpu"`` or ``"cuda"``.
        engine: What would compute the last autoregressive stage, and why.
        missing, unexpected: Names, by the checkpoint's directory.
        wrong: Sentences about tensors of another shape or kind.
    """

    taken: int = 0
    device: str = "cpu"
    engine: str = ""
    missing: dict[Path, list[str]] = field(default_factory=dict)
    unexpected: dict[Path, list[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


_report: ContextVar[HeaderReport | None] = ContextVar("header_report", default=None)


@contextmanager
def headers_only() -> Iterator[HeaderReport]:
    """In it, loaders read headers instead of weights, and stages are placed on the meta device."""
    token = _report.set(report := HeaderReport())
    try:
        yield report
    finally:
        _report.reset(token)


def header_report() -> HeaderReport | None:
    """The report of the ``headers_only`` that surrounds the caller; None outside of one."""
    return _report.get()


def lacks(directory: Path, names: list[str]) -> str:
    """Why a checkpoint without these tensors is refused."""
    what = f"the tensor {names[0]!r}" if len(names) == 1 else f"{len(names)} tensors: {_some(names)}"
    return f"checkpoint {directory} lacks {what}; download it again, with the config.json that belongs to it"


def has_more(directory: Path, names: list[str]) -> str:
    """Why a checkpoint with these tensors is refused."""
    count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
    return (
        f"checkpoint {directory} has {count} the model lacks: {_some(names)}; it is of another model or "
        "layout than config.json says: take both from one place"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
