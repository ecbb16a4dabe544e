"""The vocabularies that tests of published models use are the published ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import published_vocabularies
import pytest
from published_vocabularies import Vocabulary

SHARED = Path(__file__).parents[4] / "shared" / "published"


def both(name: str) -> Vocabulary:
    return (
        published_vocabularies.qwen() if name == "qwen" else published_vocabularies.whisper(multilingual=True)
    )


@pytest.mark.parametrize(
    ("name", "size", "first"),
    [("qwen", 151_643, "Ġ Ġ"), ("whisper", 50_257, "Ġ t")],
)
def test_each_token_of_several_bytes_has_its_merge(name: str, size: int, first: str) -> None:
    vocabulary = both(name)
    assert sorted(vocabulary.ids.values()) == list(range(size))
    assert vocabulary.merges[0] == first
    joined = [merge.replace(" ", "") for merge in vocabulary.merges]
    assert joined == [token for token in vocabulary.ids if len(token) > 1]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "folder"), [("qwen", "Qwen3-Omni-30B-A3B-Instruct"), ("whisper", "whisper-base")]
)
def test_they_are_the_published_files(name: str, folder: str) -> None:
    vocabulary = both(name)
    published = json.loads(gzip.decompress((SHARED / folder / "vocab.json.gz").read_bytes()))
    assert vocabulary.ids == {token: id for token, id in published.items() if id < len(vocabulary.ids)}
    merges = gzip.decompress((SHARED / folder / "merges.txt.gz").read_bytes()).decode().splitlines()
    assert vocabulary.merges == [line for line in merges if not line.startswith("#version")]
