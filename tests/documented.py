"""A page of the documentation whose examples are run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


class Page:
    def __init__(self, name: str) -> None:
        self.text = (Path(__file__).parents[1] / "docs" / name).read_text()
        self._blocks = re.findall(r"^```(\w+)\n(.*?)^```", self.text, re.M | re.S)

    def block(self, kind: str, index: int = 0) -> str:
        return [text for name, text in self._blocks if name == kind][index]

    def save_example(self, folder: Path, module: str) -> Path:
        """Writes the first Python block as ``module``, the first YAML block as ``pipeline.yaml``."""
        (folder / module).write_text(self.block("python"))
        (folder / "pipeline.yaml").write_text(self.block("yaml"))
        return folder

    def commands(self) -> list[tuple[str, str]]:
        """Arguments of Python and the output that is shown below them."""
        return re.findall(r"^\$ python (.*)\n((?:[^$].*\n)+)", self.block("console"), re.M)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
