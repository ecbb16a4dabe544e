"""What a published model's repository looks like, from its facts: configs, and headers before holes.

Files have the length of the published weights, and take a few megabytes of a disk.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from sglang_omni.families import family_named
from sglang_omni.hub import DownloadPlan, RepoFile, choose
from sglang_omni.published import PublishedModel, StoredTensor, published_codec
from sglang_omni.serve.launch.registry import own_files
from sglang_omni.weight_files import INDEX_FILE, NAMED_BY, SINGLE_FILE

_ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}
_INDEX_END = ".safetensors.index.json"
_TEKKEN_FILE = "tekken.json"
_VOICES_FILE, _VOICES = "spk_dict.pt", ("Chelsie", "Ethan")


def write_outline(
    family: str, model: PublishedModel, directory: Path, *, is_codec: bool = False
) -> list[DownloadPlan]:
    """Writes a model's configs, its weights without values, and a tokenizer of as many tokens.

    Args:
        directory: Is made.
        is_codec: True for the facts of a codec that is published by itself.

    Returns:
        What serving the model fetches of its repository, and of those that it reads beside. Files whose size
        is not known have 0 bytes.

    Raises:
        ValueError: The shape of a tensor is not among the facts.
    """
    directory.mkdir(parents=True)
    sizes = dict(model.listing)
    for name in model.configs:
        (directory / name).write_text(json.dumps(model.config(name)))
    weights = "" if is_codec else family_named(family).weights
    if weights:
        (name,) = (name for name in sizes if fnmatch(name, weights))
        _write_saved(directory / name, model.stored_tensors())
    else:
        sizes |= _write_weights(directory, _weight_files(model), model.stored_tensors())
    if "tokenizer_config.json" in model.configs:
        _write_tokenizer(directory, model)
    if _TEKKEN_FILE in model.configs:
        _write_tekken(directory, model)
    if _VOICES_FILE in sizes:
        _write_voices(directory)
    patterns = () if is_codec else family_named(family).files
    codecs = {pattern.partition("/")[0] for pattern in patterns if pattern.endswith("/*.safetensors")}
    for name in sizes:
        # Those of a codec's folder are below.
        own = name.partition("/")[0] not in codecs and any(fnmatch(name, pattern) for pattern in patterns)
        if own and not (directory / name).exists():
            (directory / name).parent.mkdir(exist_ok=True)
            with (directory / name).open("wb") as file:
                file.truncate(sizes[name] or 0)
    files = {name: RepoFile(name, size or 0, cached=False) for name, size in sizes.items()}
    plans = [choose(model.id, directory, files, _no_files if is_codec else own_files)]
    # The codec is where its repository may be put: in a folder beside the model's files. Some
    # models' own repository has it there.
    for folder in codecs:
        fetched = write_outline(family, published_codec(family), directory / folder, is_codec=True)
        if not any(name.startswith(f"{folder}/") for name in sizes):
            plans += fetched
    return plans


def _no_files(fields: Mapping[str, Any]) -> Sequence[str]:
    return ()


def write_safetensors(path: Path, tensors: Iterable[StoredTensor]) -> int:
    """Writes a file's header before a hole as long as its tensors. Returns the file's length."""
    header: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + math.prod(shape) * _ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        return file.truncate(8 + len(text) + end)


def _weight_files(model: PublishedModel) -> tuple[str | None, list[str]]:
    """The index of the weights, None without one, and the files that hold them."""
    names: list[str] = [model.config().get(NAMED_BY, SINGLE_FILE), SINGLE_FILE, INDEX_FILE]
    source = next(name for name in names if name in model.listing)
    if not source.endswith(_INDEX_END):
        return None, [source]
    stem = source.removesuffix(_INDEX_END)
    shards = [name for name in model.listing if fnmatch(name, f"{stem}-*.safetensors")]
    # Of some models the names of the shards are not known.
    return source, shards or [f"{stem}-00001-of-00001.safetensors"]


def _write_weights(
    directory: Path, files: tuple[str | None, list[str]], tensors: Iterable[StoredTensor]
) -> dict[str, int]:
    index, shards = files
    stored = list(tensors)
    of_each = {shard: stored[place :: len(shards)] for place, shard in enumerate(shards)}
    if index is not None:
        weight_map = {tensor.name: shard for shard, own in of_each.items() for tensor in own}
        (directory / index).write_text(json.dumps({"weight_map": weight_map}))
    return {shard: write_safetensors(directory / shard, own) for shard, own in of_each.items()}


def _write_saved(path: Path, tensors: Iterable[StoredTensor]) -> None:
    """A file of torch's, of the state dicts of a model's parts, with holes in place of values."""
    import torch

    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, _, shape in tensors:
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = torch.empty(shape)
    with torch.serialization.skip_data():
        torch.save(parts, path)


def _write_voices(directory: Path) -> None:
    import torch

    voice = {"bos_token": 0, "cond": torch.zeros(1, 192), "ref_mel": torch.zeros(1, 30, 80)}
    torch.save(dict.fromkeys(_VOICES, voice), directory / _VOICES_FILE)


def _write_tekken(directory: Path, model: PublishedModel) -> None:
    """Words of no meaning in place of Mistral's."""
    words = [
        {"rank": place, "token_bytes": base64.b64encode(str(place).encode()).decode()}
        for place in range(model.vocabulary or 1)
    ]
    file = directory / _TEKKEN_FILE
    file.write_text(json.dumps({**model.config(_TEKKEN_FILE), "vocab": words}))


def _write_tokenizer(directory: Path, model: PublishedModel) -> None:
    """Words of no meaning, and the added tokens at their places."""
    added = model.added_tokens
    words = [f"w{number}" for number in range(min(added.values(), default=model.vocabulary or 1))]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": token_id,
                "content": token,
                "special": True,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            }
            for token, token_id in added.items()
        ],
        "model": {
            "type": "WordLevel",
            "vocab": {word: place for place, word in enumerate(words)} | added,
            "unk_token": words[0],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
