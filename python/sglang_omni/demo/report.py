"""The demos' output and their error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sglang_omni.client.audio import decode_wav
from sglang_omni.proto import StageTime


class DemoFailed(Exception):
    """The demo failed; the text is for the terminal."""


def save(wav: bytes, file: Path) -> str:
    """Writes a WAV file; returns its name and length for ``show``."""
    file.write_bytes(wav)
    samples, rate = decode_wav(wav)
    return f"{file} ({len(samples) / rate:.1f} s)"


def show(name: str, text: str) -> None:
    print(label(name) + text, flush=True)


def show_stages(timings: Mapping[str, StageTime]) -> None:
    """Shows a line for each stage: its time of work, and of waiting for input or for its turn."""
    for stage, time in timings.items():
        show("", f"  {stage:<16}{time['work']:6.2f} s of work, {time['wait']:6.2f} s of waiting")


def label(name: str) -> str:
    return f"{name:>12}  "
