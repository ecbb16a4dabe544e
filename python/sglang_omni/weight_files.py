"""Which files hold a checkpoint's weights: one rule, for a directory here and for a repository of the hub.

The rule is transformers' (``modeling_utils._get_resolved_checkpoint_files``): the file that
``transformers_weights`` of config.json names, else ``model.safetensors``, else the shards of
``model.safetensors.index.json``. Where none of these is there, it is SGLang's: every safetensors file. Other
copies of the weights, in another precision or in their authors' layout, are thereby left. Of a few families
it is a file of torch's: ``Family.weights``.

Imports the standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from sglang_omni.families import marked_family

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
NAMED_BY = "transformers_weights"
TORCH_END = ".pth"
_FILE_END, _INDEX_END = ".safetensors", ".safetensors.index.json"
# Mistral's own layout of the same weights.
_FOREIGN = "consolidated"


@dataclass(frozen=True)
class WeightFiles:
    """
    Attributes:
        files: Names of the files with weights, sorted. They may be missing.
        index: The name of the index that lists them; None if they say themselves what they hold.
        weight_map: The index's: the file of each tensor, by the tensor's name; empty without one.
    """

    files: tuple[str, ...]
    index: str | None = None
    weight_map: Mapping[str, str] = field(default_factory=dict)


def weight_files(
    names: Collection[str], fields: Mapping[str, Any], read: Callable[[str], str | bytes]
) -> WeightFiles:
    """The files that hold the weights.

    Args:
        names: Those of all files, relative to the checkpoint's directory.
        fields: The fields of its config.json; empty if it has none.
        read: Gives the content of the index, by its name.

    Raises:
        FileNotFoundError: There are no weights, or not the file that config.json names.
        ValueError: What config.json names can be no such file, or the index is corrupted.
    """
    if (family := marked_family(fields)) is not None and family.weights:
        return WeightFiles((_only(names, family.weights),))
    named = fields.get(NAMED_BY)
    if named is not None:
        _check_name(named)
        if named not in names:
            raise FileNotFoundError(
                f"config.json says {NAMED_BY} {named!r}, which is not there: download the checkpoint again"
            )
    source = named or next((name for name in (SINGLE_FILE, INDEX_FILE) if name in names), None)
    if source is None:
        loose = [name for name in names if name.endswith(_FILE_END) and "/" not in name]
        if not (own := sorted(name for name in loose if not name.startswith(_FOREIGN))):
            raise FileNotFoundError(
                f"it has neither {SINGLE_FILE} nor {INDEX_FILE}, and only safetensors files are read "
                "here: take a revision that has them, or save it with transformers' save_pretrained"
            )
        return WeightFiles(tuple(own))
    if not source.endswith(_INDEX_END):
        return WeightFiles((source,))
    weight_map = _weight_map(source, read(source))
    return WeightFiles(tuple(sorted(set(weight_map.values()))), source, weight_map)


def weight_files_in(directory: Path) -> WeightFiles:
    """Those of a checkpoint's directory.

    Raises:
        FileNotFoundError, ValueError: As of ``weight_files``; the text names the directory.
    """
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    try:
        return weight_files(names, config_fields(directory), lambda name: (directory / name).read_bytes())
    except FileNotFoundError as exc:
        raise FileNotFoundError(f"{directory}: {exc}") from None
    except ValueError as exc:
        raise ValueError(f"{directory}: {exc}") from None


def config_fields(directory: Path) -> dict[str, Any]:
    """The fields of a checkpoint's config.json; empty if it has none.

    Raises:
        ValueError: It is no JSON object.
    """
    file = directory / "config.json"
    try:
        fields = json.loads(file.read_bytes()) if file.is_file() else {}
    except ValueError as exc:
        raise ValueError(f"config.json is no JSON: {exc}") from None
    if not isinstance(fields, dict):
        raise ValueError("config.json is no JSON object")
    return fields


def _only(names: Collection[str], pattern: str) -> str:
    """The one name of a pattern."""
    found = sorted(name for name in names if fnmatch(name, pattern))
    if not found:
        raise FileNotFoundError(f"it lacks {pattern}, which holds the weights: download the checkpoint again")
    if len(found) > 1:
        raise ValueError(f"it has {', '.join(found)}, and one may be there: move the others away")
    return found[0]


def _check_name(named: Any) -> None:
    if not isinstance(named, str) or not named.endswith((_FILE_END, _INDEX_END)) or "/" in named:
        raise ValueError(
            f"config.json says {NAMED_BY} {named!r}: it must be the name of a file beside it that ends in "
            f"{_FILE_END} or {_INDEX_END}"
        )


def _weight_map(name: str, text: str | bytes) -> Mapping[str, str]:
    try:
        weight_map: Mapping[str, str] = json.loads(text)["weight_map"]
        if not all(isinstance(file, str) and file for file in weight_map.values()) or not weight_map:
            raise ValueError("it lists no files")
        return weight_map
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ValueError(
            f"{name} is no index of shards: it must be an object with a 'weight_map' from names of tensors "
            f"to names of files ({exc!r})"
        ) from None
