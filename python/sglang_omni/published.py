"""What is published of each family's models: facts of their files, without their texts and weights.

``models/FAMILY/published.json`` holds them, and ``published_codec.json`` those of a codec that is published
by itself. Makers of random checkpoints shrink these configs, tests hold loaders against these names, and
docs/models.md lists these ids: none of them has a config of its own.
``scripts/published_facts.py`` writes the facts of a folder with a model's files.

Imports the standard library only.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

_MODELS = Path(__file__).parent / "models"
_RANGE = re.compile(r"\{(\d+)-(\d+)(?:/(\d+))?\}")
# Of an added token, unless published.json says otherwise.
TOKEN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
# safetensors' names of dtypes.
STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


class StoredTensor(NamedTuple):
    """``dtype`` is safetensors' name, such as ``"BF16"``."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PublishedModel:
    """
    Attributes:
        id: Its repository on the hub, ``org/name``.
        source: Where the facts are from.
        derived: Facts that were not seen but follow from others, by name, with the reason.
        configs: Its small files, parsed, by their names: ``"config.json"`` and others. Vocabularies and chat
            templates are left out.
        listing: Bytes of each file by its name; None if they are not known.
        tensors: Shapes by patterns of the names of its weights: ``{0-47}`` stands for each of these numbers.
            None for a shape that is not known.
        dtypes: safetensors' names of the weights' dtypes, by the beginning of their names; the longest
            beginning counts. Without one it is the dtype in config.json.
        total_size: Bytes of the weights; None if they are not known.
        vocabulary: Tokens without the added ones; None if that is not known.
    """

    id: str
    source: str
    derived: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)
    listing: Mapping[str, int | None] = field(default_factory=dict)
    tensors: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    total_size: int | None = None
    vocabulary: int | None = None

    def config(self, name: str = "config.json") -> dict[str, Any]:
        """A copy of one of its files.

        Raises:
            KeyError: The facts do not have it.
        """
        fields: dict[str, Any] = copy.deepcopy(self.configs[name])
        return fields

    def tensor_names(self) -> Iterator[str]:
        """The names of all weights."""
        for pattern in self.tensors:
            yield from expanded(pattern)

    def stored_tensors(self) -> Iterator[StoredTensor]:
        """All weights.

        Raises:
            ValueError: The shape of one is not known.
        """
        config = self.config()
        parts = (config, config.get("thinker_config", {}))
        told = [part[name] for part in parts for name in ("dtype", "torch_dtype") if part.get(name)]
        dtypes = {"": STORED[told[0] if told else "float32"], **self.dtypes}
        for pattern, shape in self.tensors.items():
            if shape is None:
                raise ValueError(f"{self.id}: the shape of {pattern} is not known")
            dtype = dtypes[max(filter(pattern.startswith, dtypes), key=len)]
            for name in expanded(pattern):
                yield StoredTensor(name, dtype, shape)

    @property
    def added_tokens(self) -> dict[str, int]:
        """Ids of the tokens behind the vocabulary, special or not."""
        tokens = self.configs.get("tokenizer_config.json", {}).get("added_tokens_decoder", {})
        return {entry["content"]: int(token_id) for token_id, entry in tokens.items()}


def published_models(family: str) -> tuple[PublishedModel, ...]:
    """The models of a family, the one that its maker shrinks first; none if it has no facts."""
    return _read(_MODELS / family / "published.json")


def published_model(family: str, model_id: str | None = None) -> PublishedModel:
    """One model of a family; without an id the first.

    Raises:
        KeyError: The family has no such model.
    """
    for model in published_models(family):
        if model_id in (None, model.id):
            return model
    raise KeyError(f"{family}: {model_id}")


def published_codec(family: str) -> PublishedModel:
    """The codec of a family's models, which is published as a repository of its own."""
    (codec,) = _read(_MODELS / family / "published_codec.json")
    return codec


def shrunk(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A published config with other values. Parts are changed field by field, lists and values as a whole.

    Raises:
        KeyError: A field of ``changes`` is not in ``config``: no published checkpoint has it.
    """
    result = dict(config)
    for name, value in changes.items():
        if name not in config:
            raise KeyError(f"no published config has {name!r} here; it has {', '.join(config)}")
        whole = isinstance(value, Mapping) and isinstance(config[name], Mapping)
        result[name] = shrunk(config[name], value) if whole else value
    return result


def expanded(pattern: str) -> Iterator[str]:
    """The names that a pattern stands for, in the order of its numbers.

    ``{0-47}`` is each of these numbers, ``{00-98/2}`` every second one, with two digits.
    """
    parts = _RANGE.split(pattern)
    texts = parts[::4]
    ranges = [
        [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1, int(step or 1))]
        for first, last, step in zip(parts[1::4], parts[2::4], parts[3::4], strict=True)
    ]
    for numbers in product(*ranges):
        yield texts[0] + "".join(f"{number}{text}" for number, text in zip(numbers, texts[1:], strict=True))


@lru_cache(maxsize=32)
def _read(path: Path) -> tuple[PublishedModel, ...]:
    if not path.is_file():
        return ()
    models: dict[str, dict[str, Any]] = {}
    for fields in json.loads(path.read_bytes()):
        models[fields["id"]] = _complete(models, **fields)
    return tuple(_model(**fields) for fields in models.values())


def _complete(
    models: Mapping[str, Mapping[str, Any]],
    *,
    like: str | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    without: Sequence[str] = (),
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """The facts of a model that is described by another one, with other values in its files.

    Args:
        models: Facts by id.
        like: The other's id.
        changes: By the name of a file, as of ``shrunk``.
        without: Fields of config.json that it has not.
        configs: Files of its own.
    """
    if like is None:
        return {**fields, "configs": configs or {}}
    found: dict[str, Mapping[str, Any]] = {
        name: shrunk(config, (changes or {}).get(name, {}))
        for name, config in models[like]["configs"].items()
    }
    found |= configs or {}
    found["config.json"] = {
        name: value for name, value in found["config.json"].items() if name not in without
    }
    return {**models[like], "configs": found, **fields}


def _model(added_tokens: Sequence[Mapping[str, Any]] = (), **fields: Any) -> PublishedModel:
    """A model from its facts, where tokens in a row are one entry: of the first's id, and a pattern."""
    decoder: dict[str, Any] = {}
    for entry in added_tokens:
        flags = {name: value for name, value in entry.items() if name != "id"}
        for token_id, content in enumerate(expanded(entry["content"]), start=entry["id"]):
            decoder[str(token_id)] = {**TOKEN, **flags, "content": content}
    if decoder:
        configs = fields["configs"]
        tokenizer = {"added_tokens_decoder": decoder, **configs.get("tokenizer_config.json", {})}
        fields["configs"] = {**configs, "tokenizer_config.json": tokenizer}
    return PublishedModel(
        **{**fields, "tensors": {name: _shape(text) for name, text in fields.get("tensors", {}).items()}}
    )


def _shape(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(map(int, text.split("x")))
