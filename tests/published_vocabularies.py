"""The vocabularies of Qwen, Whisper and Mistral as they are published, out of packages that carry them.

Two packages hold ``tiktoken``'s form: bytes of each token by its rank. The published checkpoints hold
``vocab.json`` and ``merges.txt``: a merge for each token, of the two parts that its own merge joins last.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sglang_omni.preprocessing.byte_letters import byte_letters

_LETTERS = byte_letters()


class Vocabulary(NamedTuple):
    """
    Attributes:
        ids: Of each token, without special ones, as in ``vocab.json``.
        merges: Pairs of tokens, by rank, as the lines of ``merges.txt``.
    """

    ids: dict[str, int]
    merges: list[str]

    def write(self, directory: Path) -> None:
        """Writes ``vocab.json`` and ``merges.txt``, the latter without a line of its version."""
        (directory / "vocab.json").write_text(json.dumps(self.ids, ensure_ascii=False), encoding="utf-8")
        (directory / "merges.txt").write_text("\n".join(self.merges) + "\n", encoding="utf-8")


@cache
def qwen() -> Vocabulary:
    """Of Qwen2, Qwen2.5, Qwen3 and their omni models: 151,643 tokens."""
    return _read(_resource("dashscope", "resources/qwen.tiktoken"))


@cache
def whisper(*, multilingual: bool) -> Vocabulary:
    """Of Whisper: 50,257 tokens of many languages, or 50,256 of English alone."""
    return _read(_resource("whisper", f"assets/{'multilingual' if multilingual else 'gpt2'}.tiktoken"))


@cache
def tekken() -> list[bytes]:
    """Of Mistral's models since Nemo: 150,000 words, of which published models have the first 130,072."""
    file = _resource("mistral_common", "data/tekken_240718.json")
    words = json.loads(file.read_text(encoding="utf-8"))["vocab"]
    return [base64.b64decode(word["token_bytes"]) for word in words]


def _resource(package: str, path: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed, whose vocabulary is tested with: make build")
    return Path(found.origin).parent / path


def _read(file: Path) -> Vocabulary:
    ranks: dict[bytes, int] = {}
    for line in file.read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    ids = {_spelled(token): rank for token, rank in ranks.items()}
    merges = [
        " ".join(map(_spelled, _last_merge(token, rank, ranks)))
        for token, rank in sorted(ranks.items(), key=lambda entry: entry[1])
        if len(token) > 1
    ]
    return Vocabulary(ids, merges)


def _spelled(token: bytes) -> str:
    return "".join(_LETTERS[byte] for byte in token)


def _last_merge(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The two parts that a token is made of: what merges of lower ranks leave of its bytes."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        lowest = min(joined)
        if lowest >= rank:
            break
        place = joined.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts
