"""Pipelines of one's own, served by the installed command, and what documentation shows of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from served_process import served_process

ROOT = Path(__file__).parents[1]
SGL_OMNI = str(Path(sys.executable).with_name("sgl-omni"))


def environment(*import_from: Path) -> dict[str, str]:
    """The tests' environment, without what it adds to Python's path."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found["PATH"] = f"{Path(SGL_OMNI).parent}{os.pathsep}{found['PATH']}"
    return found | ({"PYTHONPATH": os.pathsep.join(map(str, import_from))} if import_from else {})


@contextmanager
def served(folder: Path, *arguments: str, import_from: tuple[Path, ...] = ()) -> Iterator[str]:
    """``sgl-omni serve ARGUMENTS`` in a folder. Yields its URL."""
    with tempfile.TemporaryDirectory() as logs:
        start = {"program": (SGL_OMNI, "serve"), "cwd": folder, "env": environment(*import_from)}
        with served_process(Path(logs) / "log", *arguments, **start) as server:
            yield server.base_url


class ShownPage:
    """A page of the documentation, with its blocks in order as ``(kind, text)``."""

    def __init__(self, name: str) -> None:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        self.blocks: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S)

    def of(self, kind: str) -> list[str]:
        return [text for name, text in self.blocks if name == kind]

    def commands(self) -> list[tuple[str, str]]:
        """Each command of the console blocks, and the output that is shown below it."""
        found = []
        for block in self.of("console"):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                lines = part.replace("\\\n", "").split("\n")
                found.append((lines[0], "\n".join(lines[1:]).strip()))
        return found


def run_shown(command: str, folder: Path, url: str, *import_from: Path) -> str:
    """Runs a command as it is shown, against the server at ``url``. Returns what it prints."""
    command = command.replace("http://127.0.0.1:8000", url)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(*import_from),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def is_as_shown(output: str, shown: str) -> bool:
    """True if ``output`` is what is shown, in which ``...`` stands for anything."""
    pattern = ".*".join(re.escape(part.strip()) for part in shown.split("..."))
    return re.fullmatch(rf"\s*{pattern}\s*", output, re.S) is not None
