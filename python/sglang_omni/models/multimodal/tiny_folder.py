"""The directory that a tiny checkpoint is written to."""

from __future__ import annotations

from pathlib import Path


def make_room(directory: Path, *, overwrite: bool) -> None:
    """Removes the weights of an earlier checkpoint, whose other shards loaders would read too.

    Args:
        overwrite: Whether there may be one.

    Raises:
        FileExistsError: There is a checkpoint, and ``overwrite`` is false.
    """
    weights = sorted([*directory.glob("*.safetensors"), *directory.glob("*.safetensors.index.json")])
    if weights and not overwrite:
        raise FileExistsError(
            f"{directory} holds a checkpoint already, {weights[0].name}: give another one, or --overwrite"
        )
    for file in weights:
        file.unlink()
