"""A server as its users have it: the launcher's process, and all that is below it, each by its role."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

START_S, STOP_S = 600.0, 90.0


@contextlib.asynccontextmanager
async def server(options: list[str], log: Path) -> AsyncIterator[tuple[psutil.Process, str]]:
    """The launcher's process and the URL that it serves at."""
    command = [sys.executable, "-m", "sglang_omni.launch_server", "--port", "0", *options]
    # A run that is killed leaves no server behind.
    command += ["--parent-pid", str(os.getpid())]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)
    try:
        async with asyncio.timeout(START_S):
            # The launcher's own word: of a fleet, replicas are served before that.
            while not (found := re.search(r"\[server\].* served on (\S+)\n", log.read_text())):
                if process.returncode is not None:
                    raise SystemExit(f"the server ended: {log.read_text()}")
                await asyncio.sleep(0.05)
        yield psutil.Process(process.pid), found[1]
        process.terminate()
        if (status := await asyncio.wait_for(process.wait(), STOP_S)) != 0:
            raise SystemExit(f"the server ended with status {status}: {log.read_text()[-2000:]}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def described(client: httpx.AsyncClient) -> list[Mapping[str, Any]]:
    """What each replica reports of itself in ``/get_server_info``; of one that is away nothing is there."""
    answer = (await client.get("/get_server_info", timeout=60)).json()
    if "workers" not in answer:
        return [answer]
    return [worker["answer"] for worker in answer["workers"] if "processes" in (worker.get("answer") or {})]


async def load_of(client: httpx.AsyncClient) -> int:
    """Requests that run or wait in all of the replicas."""
    answer = await client.get("/workers")
    if answer.status_code == 404:
        return int((await client.get("/get_load")).json()["num_reqs"])
    return sum(worker["load"] for worker in answer.json()["workers"])


def launched_role(line: list[str]) -> str | None:
    """What a process that the launcher starts is, by its command line: ``router`` or ``replica 0``."""
    if any("router_process" in word for word in line):
        return "router"
    return line[line.index("--log-name") + 1].replace("-", " ") if "--log-name" in line else None


class Roles:
    """What each process of a server is: ``server``, ``router``, ``replica 0``, ``thinker of replica 0``."""

    def __init__(self, launcher: psutil.Process, client: httpx.AsyncClient) -> None:
        self._launcher, self._client = launcher, client
        # Of each process of stages its name, by its id.
        self._stages: dict[int, str] = {}

    async def present(self) -> dict[str, psutil.Process]:
        """The processes that serve now. One that is being started may have no role yet, and is left out."""
        found, unnamed = self._look()
        if unnamed:
            with contextlib.suppress(httpx.HTTPError):
                for replica in await described(self._client):
                    self._stages |= {each["pid"]: each["name"] for each in replica["processes"]}
            found, _ = self._look()
        return found

    def is_stage(self, process: psutil.Process) -> bool:
        return process.pid in self._stages

    def _look(self) -> tuple[dict[str, psutil.Process], bool]:
        """Processes by role, and True if there are others."""
        found, unnamed = {"server": self._launcher}, False
        replicas: dict[int, str] = {}
        for process in self._launcher.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if (role := launched_role(process.cmdline())) is not None:
                    if role != "router":
                        replicas[process.pid] = role
                elif process.pid in self._stages:
                    # Replicas come before what is below them.
                    of = replicas.get(process.ppid())
                    role = self._stages[process.pid] + (f" of {of}" if of else "")
                else:
                    unnamed = True
                    continue
                found[role] = process
        return found, unnamed
