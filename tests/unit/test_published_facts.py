"""The facts of what is published: against the files themselves, where they are, and against our makers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.weights import tensor_specs
from sglang_omni.published import expanded, published_model, shrunk

SHARED = Path(__file__).parents[3] / "shared" / "published"
SEEN = {
    "Qwen3-Omni-30B-A3B-Instruct": ("qwen3_omni", "Qwen/Qwen3-Omni-30B-A3B-Instruct"),
    "Qwen2.5-Omni-3B": ("qwen2_5_omni", "Qwen/Qwen2.5-Omni-3B"),
}


def content(folder: Path, name: str) -> Any:
    zipped = folder / f"{name}.gz"
    return json.loads(
        gzip.decompress(zipped.read_bytes()) if zipped.exists() else (folder / name).read_bytes()
    )


def paths(fields: Any, at: str = "") -> Iterator[str]:
    """The path of each key of a config."""
    if isinstance(fields, Mapping):
        for name, value in fields.items():
            yield f"{at}.{name}"
            yield from paths(value, f"{at}.{name}")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize("folder", SEEN)
def test_the_facts_are_those_of_the_published_files(folder: str) -> None:
    model = published_model(*SEEN[folder])
    for name, facts in model.configs.items():
        if name in model.derived:
            continue
        fields = content(SHARED / folder, name)
        assert facts == {key: fields[key] for key in fields if key not in ("chat_template", "mel_filters")}
    index = content(SHARED / folder, "model.safetensors.index.json")
    assert sorted(model.tensor_names()) == sorted(index["weight_map"])
    assert model.total_size == index["metadata"]["total_size"]
    assert set(index["weight_map"].values()) <= set(model.listing)


def test_the_weights_that_are_made_are_those_that_are_published() -> None:
    """Of the whole model: each name, and the bytes of all in bfloat16."""
    model = published_model("qwen3_omni")
    specs = list(tensor_specs(model.config(), answer_ends=0, text_ids=0))
    assert sorted(spec.name for spec in specs) == sorted(model.tensor_names())
    numbers = 0
    for spec in specs:
        count = 1
        for size in spec.shape:
            count *= size
        numbers += count
    assert 2 * numbers == model.total_size


def test_a_random_checkpoint_has_the_published_fields_and_files(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, 0)
    model = published_model("qwen3_omni")
    for name in ("config.json", "generation_config.json", "preprocessor_config.json"):
        assert list(paths(content(tmp_path, name))) == list(paths(model.config(name)))
    made = content(tmp_path, "tokenizer_config.json")
    published = model.config("tokenizer_config.json")
    assert list(made) == list(published)
    assert list(made["added_tokens_decoder"].values()) == list(published["added_tokens_decoder"].values())
    files = {path.name for path in tmp_path.iterdir() if "-of-" not in path.name} - {"RANDOM_WEIGHTS"}
    # The one that is not made is another hub's own.
    unmade = {"configuration.json"}
    assert files - set(model.derived) == {name for name in model.listing if "-of-" not in name} - unmade


def test_shrinking_keeps_to_published_fields() -> None:
    assert shrunk({"a": 1, "b": {"c": 2, "d": [3]}}, {"b": {"d": [4, 5]}}) == {
        "a": 1,
        "b": {"c": 2, "d": [4, 5]},
    }
    with pytest.raises(KeyError, match="no published config has 'e' here; it has c, d"):
        shrunk({"b": {"c": 2, "d": 3}}, {"b": {"e": 4}})


def test_patterns_stand_for_names() -> None:
    assert list(expanded("a.{0-1}.b.{9-10}.c")) == ["a.0.b.9.c", "a.0.b.10.c", "a.1.b.9.c", "a.1.b.10.c"]
    assert list(expanded("plain.weight")) == ["plain.weight"]
