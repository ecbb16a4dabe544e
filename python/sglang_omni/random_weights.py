"""The mark of a checkpoint whose weights are random, so that what it says means nothing.

It is a file beside the others, because the configs of random checkpoints are the published ones.
"""

from __future__ import annotations

from pathlib import Path

_FILE = "RANDOM_WEIGHTS"
_TEXT = "The weights in this folder are random: what the model says means nothing.\n"


def mark_random(directory: str | Path) -> None:
    """Marks a checkpoint's directory."""
    (Path(directory) / _FILE).write_text(_TEXT, encoding="utf-8")


def has_random_weights(model_path: str | Path) -> bool:
    """True if the checkpoint is marked."""
    return (Path(model_path) / _FILE).is_file()
