"""What a demo shows, and what it fails with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sglang_omni.client.audio import decode_wav
from sglang_omni.proto import StageTime


class DemoFailed(Exception):
    """What went wrong, for the person at the terminal."""


def save(wav: bytes, file: Path) -> str:
    file.write_bytes(wav)
    samples, rate = decode_wav(wav)
    return f"{file} ({len(samples) / rate:.1f} s)"


def show(name: str, text: str) -> None:
    print(label(name) + text, flush=True)


def show_stages(timings: Mapping[str, StageTime]) -> None:
    """A line for each stage: what it did, beside how long it waited for input or for its turn."""
    for stage, time in timings.items():
        show("", f"  {stage:<16}{time['work']:6.2f} s of work, {time['wait']:6.2f} s of waiting")


def label(name: str) -> str:
    return f"{name:>12}  "
