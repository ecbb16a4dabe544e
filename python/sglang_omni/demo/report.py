"""What a demo shows, and what it fails with."""

from __future__ import annotations

from pathlib import Path

from sglang_omni.client.audio import decode_wav


class DemoFailed(Exception):
    """What went wrong, for the person at the terminal."""


def save(wav: bytes, file: Path) -> str:
    file.write_bytes(wav)
    samples, rate = decode_wav(wav)
    return f"{file} ({len(samples) / rate:.1f} s)"


def show(name: str, text: str) -> None:
    print(label(name) + text, flush=True)


def label(name: str) -> str:
    return f"{name:>12}  "
