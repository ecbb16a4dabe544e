"""A pipeline over two hosts, which are network namespaces: its coordinator, and the program on the other."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from network_namespaces import Network, network
from program_lines import Lines
from waiting import PATIENCE

from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.config.schema.load import config_to_dict

HERE = Path(__file__).parent
# With much time, on a busy machine as well, for the host to be back after a cut that is noticed.
HOST_TIMEOUT, NOTICED = 10.0, 4.0
PORT = 7000
# How many files a process may have open on most machines, until it asks for more.
USUAL_FILES = 1024


class Coordinator:
    """The coordinator on host a, and what it answers."""

    def __init__(self, net: Network, folder: Path, config: PipelineConfig) -> None:
        self.config = config
        options = {
            "config": config_to_dict(config),
            "address": net.address("a"),
            "port": PORT,
            "key": str(folder / "join.key"),
            "host_timeout": HOST_TIMEOUT,
        }
        self._log = folder / "coordinator.log"
        log = self._log.open("a")
        self._read = len(self._log.read_text())
        self.process = net.popen(
            "a",
            [sys.executable, str(HERE / "host_coordinator.py"), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
            text=True,
        )
        self._lines = Lines(self.process)
        self._answers: dict[str, dict[str, Any]] = {}
        self._number = 0

    def send(self, ask: Any) -> str:
        """Ask for something; ``answer`` has it later."""
        self._number += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": str(self._number), "ask": ask}) + "\n")
        self.process.stdin.flush()
        return str(self._number)

    def answer(self, name: str) -> dict[str, Any]:
        """``{"result": ...}`` or ``{"error": ...}``."""
        while name not in self._answers:
            text = self._lines.until(lambda _: True)
            assert text.startswith('{"id": '), f"the coordinator's stdout has, beside its answers: {text!r}"
            line = json.loads(text)
            self._answers[line.pop("id")] = line
        return self._answers.pop(name)

    def ask(self, **inputs: Any) -> dict[str, Any]:
        return self.answer(self.send(inputs))

    def result(self, **inputs: Any) -> Any:
        answer = self.ask(**inputs)
        assert "result" in answer, answer
        return answer["result"]

    def health(self) -> dict[str, Any]:
        return self.answer(self.send("health"))["result"]

    def until_all_up(self) -> None:
        """Return when no stage is down."""
        deadline = time.monotonic() + PATIENCE
        while down := self.health()["down_stages"]:
            assert time.monotonic() < deadline, down
            time.sleep(0.05)

    def logs(self, text: str) -> None:
        """Return once it has logged this, after what it was waited for to log before."""
        deadline = time.monotonic() + PATIENCE
        while (found := self._log.read_text().find(text, self._read)) < 0:
            assert time.monotonic() < deadline, f"it has not logged {text!r}"
            time.sleep(0.02)
        self._read = found + len(text)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0


def environment(**more: str) -> dict[str, str]:
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}


def host(net: Network, folder: Path, *, name: str = "b", key: Path | None = None, **env: str) -> Lines:
    """``sgl-omni host`` on host b."""
    command = [sys.executable, "-m", "sglang_omni.cli", "host", "--name", name]
    command += [
        "--coordinator",
        f"tcp://{net.address('a')}:{PORT}",
        "--join-key",
        str(key or folder / "join.key"),
    ]
    few_files = ["sh", "-c", f'ulimit -Sn {USUAL_FILES}; exec "$@"', "sh"]
    return Lines(
        net.popen(
            "b",
            [*few_files, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(**env),
            text=True,
        )
    )


def pipeline(folder: Path, **fields: Any) -> PipelineConfig:
    """Noise is made on host a, inverted on b, and streamed back to a, which says what it got."""

    def stage(name: str, factory: str, **fields: Any) -> StageConfig:
        return StageConfig(name=name, factory=f"host_stages.{factory}", process=name, **fields)

    folders = {"folder": str(folder)}
    return PipelineConfig(
        model_path="m",
        stages=[
            stage("noise", "noise", next="invert", factory_args=folders),
            stage("invert", "invert", next="chunks", node="b", factory_args=folders),
            stage("chunks", "chunks", next="digest", stream_to=["digest"], node="b"),
            stage("digest", "digest", terminal=True, can_accept_stream_before_payload=True),
        ],
        env_defaults={"TEST_OF_HOSTS": "from the config"},
        **fields,
    )


@contextlib.contextmanager
def two_hosts(folder: Path, **fields: Any) -> Iterator[tuple[Network, Coordinator, Lines]]:
    """The pipeline, up, with its network, its coordinator, and the program on host b."""
    with network("a", "b") as net:
        coordinator = Coordinator(net, folder, pipeline(folder, **fields))
        while not (folder / "join.key").exists():
            assert coordinator.process.poll() is None
            time.sleep(0.02)
        there = host(net, folder)
        try:
            assert coordinator.answer("start") == {"result": None}
            yield net, coordinator, there
        finally:
            # Shown where a test has failed.
            print((folder / "coordinator.log").read_text(), "".join(there.seen), sep="\n----\n")
