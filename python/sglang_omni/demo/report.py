"""The demos' output and their error."""

from __future__ import annotations

from pathlib import Path

from sglang_omni.generation.audio import decode_wav


class DemoFailed(Exception):
    """The demo failed; the text is for the terminal."""


def save(wav: bytes, file: Path) -> str:
    """Writes a WAV file; returns its name and length for ``show``."""
    file.write_bytes(wav)
    samples, rate = decode_wav(wav)
    return f"{file} ({len(samples) / rate:.1f} s)"


def show(name: str, text: str) -> None:
    print(label(name) + text, flush=True)


def label(name: str) -> str:
    return f"{name:>12}  "
