"""The facts of what is published: against the files themselves, where they are, and against our makers."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.families import FAMILIES
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.models.qwen3_omni.tiny_checkpoint.weights import tensor_specs
from sglang_omni.published import expanded, published_codec, published_model, published_models, shrunk

ITEM = {"F32": 4, "BF16": 2, "F16": 2}
SHARED = Path(__file__).parents[4] / "shared" / "published"
SEEN = {
    "Qwen3-Omni-30B-A3B-Instruct": ("qwen3_omni", "Qwen/Qwen3-Omni-30B-A3B-Instruct"),
    "Qwen2.5-Omni-3B": ("qwen2_5_omni", "Qwen/Qwen2.5-Omni-3B"),
    "Qwen3-ASR-0.6B": ("qwen3_asr", "Qwen/Qwen3-ASR-0.6B"),
    "whisper-base": ("whisper", "openai/whisper-base"),
}
# Of the copies, not of what is published.
NO_FILES = {".", "..", ".git", ".msc", ".mv"}


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
    seen = (SHARED / folder / "LISTING.seen").read_text().splitlines()
    names = {line.split(" ", 1)[1] for line in seen} - NO_FILES
    assert names <= {*model.listing, "README.md", ".gitattributes"}
    if not (SHARED / folder / "model.safetensors.index.json.gz").exists():
        return
    index = content(SHARED / folder, "model.safetensors.index.json")
    assert sorted(model.tensor_names()) == sorted(index["weight_map"])
    assert model.total_size == index["metadata"]["total_size"]
    assert set(index["weight_map"].values()) <= set(model.listing)


def test_the_weights_that_are_made_are_those_that_are_published() -> None:
    """Of the whole model: each name and shape."""
    model = published_model("qwen3_omni")
    specs = tensor_specs(model.config(), answer_ends=0, text_ids=0)
    assert {spec.name: spec.shape for spec in specs} == {
        name: shape for name, _, shape in model.stored_tensors()
    }


# Bytes that the published size has beside the tensors whose names are known, by id.
NOT_ACCOUNTED = {"sesame/csm-1b": 8_400_896}


def test_the_shapes_are_as_large_as_the_published_weights() -> None:
    sized = 0
    for family in FAMILIES:
        for model in published_models(family.name):
            assert len(list(model.stored_tensors())) == len(list(model.tensor_names()))
            if model.total_size is not None:
                numbers = sum(ITEM[dtype] * prod(shape) for _, dtype, shape in model.stored_tensors())
                assert model.total_size - numbers == NOT_ACCOUNTED.get(model.id, 0), model.id
                sized += 1
    assert sized >= 4


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
    # The first is another hub's own.
    unmade = {"configuration.json", "README.md"}
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
    assert list(expanded("<|1.{00-06/2}|>")) == ["<|1.00|>", "<|1.02|>", "<|1.04|>", "<|1.06|>"]


def test_every_model_has_facts_that_agree() -> None:
    """Of all families: the layers that a config names are those of the tensors, and ids are the tokens'."""
    for family in FAMILIES:
        for model in published_models(family.name):
            config, names = model.config(), list(model.tensor_names())
            assert len(set(names)) == len(names) > 100, model.id
            assert model.source, model.id
            layers = {
                value
                for part in nested(config)
                for name in ("num_hidden_layers", "encoder_layers", "n_layer", "depth")
                if (value := part.get(name))
            }
            found: dict[str, int] = {}
            for name in names:
                if match := re.match(r"(.*?(?:layers|blocks))\.(\d+)\.", name):
                    found[match[1]] = max(found.get(match[1], 0), int(match[2]) + 1)
            decoders = {count for prefix, count in found.items() if "model.layers" in prefix}
            for prefix in (prefix for prefix in found if "model.layers" in prefix):
                # Each layer has the same tensors.
                inside = Counter(
                    name.split(".", prefix.count(".") + 2)[-1]
                    for name in names
                    if name.startswith(f"{prefix}.")
                )
                assert set(inside.values()) == {found[prefix]}, (model.id, prefix)
            assert decoders <= layers, (model.id, decoders, layers)
            if model.vocabulary is not None and model.added_tokens:
                # The end of Whisper's texts is both a word and an added token.
                assert model.vocabulary - min(model.added_tokens.values()) in (0, 1), model.id


def nested(fields: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(fields, Mapping):
        yield fields
        for value in fields.values():
            yield from nested(value)


def test_a_model_names_its_codec() -> None:
    model, codec = published_model("higgs_audio_v2"), published_codec("higgs_audio_v2")
    named = model.config("processor_config.json")
    assert named["audio_tokenizer"]["audio_tokenizer_name_or_path"] == codec.id
    assert named["feature_extractor"] == codec.config("preprocessor_config.json")
    heard, spoken = codec.config(), model.config()
    assert heard["codebook_size"] == spoken["codebook_size"] - 2 == spoken["audio_stream_bos_id"]
    # Kilobits a second, of codes of ten bits, 25 frames a second.
    assert heard["target_bandwidths"][-1] * 1000 == spoken["num_codebooks"] * 10 * 25


def test_a_model_is_reported_as_another_with_other_values() -> None:
    small, large = published_models("qwen2_5_omni")
    assert large.id == "Qwen/Qwen2.5-Omni-7B"
    assert list(paths(large.config())) == list(paths(small.config()))
    assert (small.config()["talker_config"]["head_dim"], large.config()["talker_config"]["head_dim"]) == (
        64,
        128,
    )
    thinking = published_model("qwen3_omni", "Qwen/Qwen3-Omni-30B-A3B-Thinking")
    assert not thinking.config()["enable_audio_output"]
    assert "talker_config" not in thinking.config()
    assert {name.split(".")[0] for name in thinking.tensor_names()} == {"thinker"}
