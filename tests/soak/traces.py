"""What a process has of memory and descriptors, and frames between the two ends of a soak."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
from pathlib import Path
from typing import Any

from sglang_omni.proto import codec


@dataclasses.dataclass(frozen=True)
class Traces:
    """Of one process: bytes of its own, bytes of shared memory that it has touched, and what it has open."""

    private: int
    shared: int
    descriptors: int
    threads: int
    memfds: int

    def __str__(self) -> str:
        return (
            f"{megabytes(self.private)} + {megabytes(self.shared)} shared, "
            f"{self.descriptors} descriptors, {self.memfds} memfds"
        )


def tidy() -> None:
    """Give back what this process does not use, so that what it keeps can be seen.

    glibc keeps freed blocks of up to 32 MB; whether it happens to have one is worth more than any leak.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def traces_of(pid: int) -> Traces:
    """A memfd counts whether it is open or only mapped, and once for each of its mappings.

    Raises OSError if the process has ended.
    """
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    if "RssAnon" not in status:
        raise ProcessLookupError(f"{pid} has ended, and nobody has collected its exit status yet")
    files = []
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists the folder
            files.append(str(link.readlink()))
    maps = (folder / "maps").read_text()
    return Traces(
        private=int(status["RssAnon"].split()[0]) << 10,
        shared=int(status["RssShmem"].split()[0]) << 10,
        descriptors=len(files),
        threads=int(status["Threads"]),
        memfds=sum("memfd:" in file for file in files) + maps.count("/memfd:"),
    )


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


async def write_frame(writer: asyncio.StreamWriter, obj: Any) -> None:
    packed = codec.pack(obj)
    writer.write(len(packed).to_bytes(4, "little") + packed)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """None at the connection's end."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "little")
        return codec.unpack(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
