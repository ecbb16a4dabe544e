"""The word that tells weights apart, by which a kept voice knows its encoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sglang_omni.config.plan.weights import archive_identity, weights_identity

WEIGHTS = {
    "codec.a": np.arange(2000, dtype=np.float32),
    "codec.b": np.ones((3, 2), np.float32),
    "model.c": np.zeros(4, np.float32),
}


def stored(folder: Path, weights: dict[str, np.ndarray], shards: int = 1) -> Path:
    folder.mkdir()
    names = sorted(weights)
    files = {f"model-{index}.safetensors": names[index::shards] for index in range(shards)}
    for file, members in files.items():
        save_file({name: weights[name] for name in members}, folder / file)
    index = {"weight_map": {name: file for file, members in files.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_it_is_of_the_weights_and_not_of_their_files(tmp_path: Path) -> None:
    word = weights_identity(stored(tmp_path / "one", WEIGHTS), ("codec.",))
    assert word == weights_identity(stored(tmp_path / "three", WEIGHTS, 3), ("codec.",))
    # A model that was trained on, with the same codec.
    tuned = WEIGHTS | {"model.c": np.ones(4, np.float32)}
    assert word == weights_identity(stored(tmp_path / "tuned", tuned), ("codec.",))
    assert word != weights_identity(tmp_path / "tuned")
    others = (
        WEIGHTS | {"codec.b": np.zeros((3, 2), np.float32)},
        WEIGHTS | {"codec.b": np.ones((2, 3), np.float32)},
        WEIGHTS | {"codec.b": np.ones((3, 2), np.float16)},
    )
    for index, other in enumerate(others):
        assert word != weights_identity(stored(tmp_path / str(index), other), ("codec.",))
    with pytest.raises(ValueError, match="has no tensor x"):
        weights_identity(tmp_path / "one", ("x",))


def test_of_an_archive(tmp_path: Path) -> None:
    words = []
    for index, content in enumerate((b"a" * 3_000_000, b"a" * 2_999_999 + b"b", b"a" * 3_000_001)):
        (path := tmp_path / str(index)).write_bytes(content)
        words.append(archive_identity(path))
    assert len({*words}) == 3
