"""A program in the place of ``nvidia-cuda-mps-control``, for ``fake_machine``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_omni.pipeline.processes import mps

# Notes how it is called, and listens while the file "control" is there, whose text is run if it has any.
CONTROL = """#!/bin/sh
dir="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -d ]; then
    echo "start $CUDA_VISIBLE_DEVICES" >> "$MPS_CALLS"
    {fault}
    touch "$dir/control"
    sleep 300 > /dev/null 2>&1 < /dev/null & echo $! > "$dir/pid"
    exit 0
fi
read command
echo "$command" >> "$MPS_CALLS"
case "$command" in
    get_server_list)
        if [ -s "$dir/control" ]; then . "$dir/control"; fi
        if [ -e "$dir/server" ]; then echo 4711; fi ;;
    quit) kill "$(cat "$dir/pid")"; rm -f "$dir/control" ;;
esac
"""


class FakeMps:
    """The script on PATH.

    Attributes:
        calls: What it has been asked, in order.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        monkeypatch.setenv("MPS_CALLS", str(self._calls))
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
        monkeypatch.setattr(mps, "_DEFAULT_PIPES", str(folder / "elsewhere"))

    def install(self, fault: str = ":") -> None:
        program = self._folder / "nvidia-cuda-mps-control"
        program.write_text(CONTROL.replace("{fault}", fault))
        program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []
