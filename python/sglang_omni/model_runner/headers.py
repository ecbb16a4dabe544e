"""Builds stages from the headers of their weights alone, to find what a checkpoint lacks before it is loaded.

Inside of ``headers_only`` the loaders run as they are: a ``Checkpoint`` gives tensors of the meta device, and
notes what it would refuse. So no second list of names is kept. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

DEVICE = "meta"
_Built = TypeVar("_Built")


class WrongTensor(ValueError):
    """A tensor is missing, or of another shape or kind. What else is wrong is not known yet."""


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

    def faults(self) -> list[str]:
        """A sentence about each checkpoint with other names of tensors, and one about other shapes."""
        named = [
            lacks(directory, sorted(set(names)), sorted(set(self.unexpected.get(directory, ()))))
            for directory, names in self.missing.items()
        ]
        named += [
            has_more(directory, sorted(set(names)))
            for directory, names in self.unexpected.items()
            if directory not in self.missing
        ]
        if self.wrong:
            others = len(self.wrong) - 1
            more = f"; {others} more {'tensor is' if others == 1 else 'tensors are'} wrong" if others else ""
            named.append(self.wrong[0] + more)
        return named


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


def naming_all(build: Callable[[], _Built]) -> _Built:
    """What ``build`` makes of a checkpoint.

    Raises:
        ValueError: Tensors of the checkpoint are wrong; the text is about all of them, as ``faults`` are.
        Exception: Whatever ``build`` raises.
    """
    try:
        return build()
    except WrongTensor as first:
        try:
            with headers_only() as report:
                build()
        except Exception:  # noqa: BLE001
            # Only what is in headers can be looked at again.
            raise first from None
        raise ValueError("; ".join(report.faults()) or str(first)) from first


def lacks(directory: Path, names: list[str], instead: list[str] | None = None) -> str:
    """Why a checkpoint without these tensors is refused, which may have others ``instead``."""
    what = f"the tensor {names[0]!r}" if len(names) == 1 else f"{len(names)} tensors: {_some(names)}"
    if instead:
        return f"checkpoint {directory} lacks {what}; and has {_unknown(instead)}"
    return f"checkpoint {directory} lacks {what}; download it again, with the config.json that belongs to it"


def has_more(directory: Path, names: list[str]) -> str:
    """Why a checkpoint with these tensors is refused."""
    return f"checkpoint {directory} has {_unknown(names)}"


def _unknown(names: list[str]) -> str:
    count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
    return (
        f"{count} the model lacks: {_some(names)}; it is of another model or layout than config.json says: "
        "take both from one place"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
