"""The memory that this process may still take: of the machine, and of its container."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
# Of a group's statistics, file pages that the kernel gives back before anything else; by version.
_RECLAIMABLE = {1: "total_inactive_file", 2: "inactive_file"}


@dataclass(frozen=True)
class Ram:
    """
    Attributes:
        available: Bytes that can be taken without swapping.
        total: Bytes that there are.
        bound: What bounds them: ``"this machine"``, or the control group of a container.
    """

    available: int
    total: int
    bound: str = "this machine"


def available_ram() -> Ram | None:
    """The tightest of the machine's memory and the limits of the control groups that this process is in.

    Read from ``/proc/meminfo`` (``MemAvailable``) and from version 1 or 2 of the control groups, in which a
    container's limit is; None on systems without them.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        machine = Ram(_kib(lines["MemAvailable"]), _kib(lines["MemTotal"]))
    except (OSError, KeyError, ValueError):
        return None
    return min((machine, *_groups()), key=lambda ram: ram.available)


def _kib(field: str) -> int:
    return int(field.split()[0]) << 10


def _groups() -> Iterator[Ram]:
    """What each control group with a limit leaves of it: this process's, and those that it is inside of."""
    try:
        entries = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return
    for number, controllers, path in entries:
        if number == "0":
            yield from _limits(_GROUPS, path, 2, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = _GROUPS / "memory"
            yield from _limits(root, path, 1, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _limits(root: Path, path: str, version: int, limit: str, usage: str) -> Iterator[Ram]:
    # In a container the path may be the host's, and the files those of the root.
    own = root / path.lstrip("/")
    for group in (own, *own.parents):
        try:
            most, used = int((group / limit).read_text()), int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            free = most - used + int(stat.get(_RECLAIMABLE[version], 0))
            yield Ram(max(0, min(free, most)), most, "this container (its control group's limit)")
        except (OSError, ValueError):
            # No such group here, or "max": no limit.
            pass
        if group == root:
            return
