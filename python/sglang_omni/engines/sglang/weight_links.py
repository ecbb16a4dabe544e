"""A checkpoint's directory as SGLang's loader must see it, to read the weights that all else here reads.

SGLang reads every safetensors file of a directory, or those in ``model.safetensors.index.json``: also copies
of the weights in another precision or layout, of which the last that it reads wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sglang_omni.weight_files import INDEX_FILE, weight_files, weight_files_in


@contextmanager
def with_chosen_weights(model_path: Path) -> Iterator[Path]:
    """``model_path``, or while SGLang loads, a folder of links to its files without the weights to be left.

    Raises:
        FileNotFoundError, ValueError: As of ``weight_files_in``.
    """
    names = {path.name for path in model_path.iterdir()}
    stored = {name for name in names if name.endswith(".safetensors")}
    # SGLang reads torch's own format, too, where there is no other.
    chosen = weight_files_in(model_path) if stored else None
    if chosen is None or set(chosen.files) == _read_by_sglang(model_path, names, stored):
        yield model_path
        return
    with TemporaryDirectory(prefix="sglang-omni-") as folder:
        for name in names - stored - {INDEX_FILE} | set(chosen.files):
            os.symlink((model_path / name).absolute(), Path(folder, name))
        if chosen.index is not None:
            os.symlink((model_path / chosen.index).absolute(), Path(folder, INDEX_FILE))
        yield Path(folder)


def _read_by_sglang(model_path: Path, names: set[str], stored: set[str]) -> set[str]:
    if INDEX_FILE not in names:
        return stored
    return set(weight_files([INDEX_FILE], {}, lambda name: (model_path / name).read_bytes()).files)
