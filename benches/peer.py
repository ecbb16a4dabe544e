"""The peer's half of a benchmark: a process in its own environment that measures a block when asked to.

The peer is sglang-omni 0.1.9, which `make bench-peers` installs. The benchmark asks for a block of the peer's
after each block of its own, so both meet the same machine. ``Peer`` is the asking end; ``answer`` the other
one. What goes wrong there costs the peer's column, not ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from measure import Block, Samples, progress

ENVIRONMENT = Path(__file__).resolve().parent.parent / "build/peers/sglang-omni"
# Its slowest block, a payload of 1 GiB, takes about 3 s; starting its pipelines about 40 s.
_PATIENCE_S = 180.0


class Peer:
    """A running ``script``; one that is not installed or has failed answers every block with no samples."""

    def __init__(self, script: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._script = script
        self._log = ENVIRONMENT.parent / f"{script.removesuffix('.py')}.log"
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Peer:
        python = ENVIRONMENT / "bin/python"
        if not python.exists():
            progress("the peer is not installed (`make bench-peers` does that): its column stays empty")
            return self
        self._reader, self._writer = await asyncio.open_connection(sock=self._start(python))
        progress(f"starting the peer ({self._log})")
        await self._ask("start")
        return self

    def _start(self, python: Path) -> socket.socket:
        ours, theirs = socket.socketpair()
        # A PYTHONPATH of ours would put our package of the same name before the peer's.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, Path(__file__).with_name(self._script), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        return ours

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._writer.close()
            await asyncio.to_thread(self._end, self._process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def block(self, case: str, *arguments: Any) -> Block:
        """Samples of a case of the peer's, each name with "peer " before it."""

        async def run() -> Samples:
            samples = await self._ask(case, *arguments)
            return {f"peer {name}": values for name, values in samples.items()}

        return run

    async def _ask(self, case: str, *arguments: Any) -> Samples:
        if self._process is None:
            return {}
        try:
            self._writer.write(json.dumps([case, *arguments]).encode() + b"\n")
            line = await asyncio.wait_for(self._reader.readline(), _PATIENCE_S)
        except (TimeoutError, ConnectionError):
            line = b""
        if line:
            samples: Samples = json.loads(line)
            return samples
        progress(f"the peer failed in {case!r}; the rest of its column stays empty. See {self._log}")
        process, self._process = self._process, None
        self._writer.close()
        process.terminate()
        await asyncio.to_thread(self._end, process)
        return {}


async def answer(cases: Mapping[str, Callable[..., Awaitable[Samples]]]) -> None:
    """Measures what it is asked for until nobody asks any more."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=int(sys.argv[1])))
    while line := await reader.readline():
        case, *arguments = json.loads(line)
        samples = {} if case == "start" else await cases[case](*arguments)
        writer.write(json.dumps(samples).encode() + b"\n")
        await writer.drain()
