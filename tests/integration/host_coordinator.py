"""A coordinator in a process of its own: requests come as lines of JSON, and so do their answers."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from sglang_omni.config import PipelineConfig
from sglang_omni.pipeline.processes.hosts.join_key import read_or_create_join_key
from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


async def answer(runner: MultiProcessPipelineRunner, line: dict[str, Any]) -> None:
    try:
        if line["ask"] == "health":
            result = runner.coordinator.health()
        else:
            result = await runner.coordinator.submit(line["id"], OmniRequest(line["ask"]))
        say(id=line["id"], result=result)
    except Exception as error:  # noqa: BLE001  the test asserts what it is
        say(id=line["id"], error=str(error))


async def main(options: dict[str, Any]) -> None:
    launcher = HostsLauncher(
        options["address"],
        options["port"],
        read_or_create_join_key(Path(options["key"])),
        host_timeout=options["host_timeout"],
    )
    runner = MultiProcessPipelineRunner(PipelineConfig.from_dict(options["config"]), launcher=launcher)
    try:
        await runner.start(timeout=240)
    except RuntimeError as error:
        say(id="start", error=str(error))
        return
    say(id="start", result=None)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    answering = set()
    while text := await lines.readline():
        task = asyncio.create_task(answer(runner, json.loads(text)))
        answering.add(task)
        task.add_done_callback(answering.discard)
    await runner.stop()


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s [coordinator] %(name)s: %(message)s")
    asyncio.run(main(json.loads(sys.argv[1])))
