"""Writes the facts of a model's files into its family's published.json.

    python scripts/published_facts.py FAMILY ORG/NAME FOLDER --source "where FOLDER is from"

FOLDER holds the model's files as they are published, or some of them; ``.gz`` files are read as what they
hold. Numbers, names and values are kept; vocabularies, chat templates and other texts are not. What is
written about the model before, such as ``derived``, sizes and shapes, stays.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from sglang_omni.published import TOKEN, expanded

MODELS = Path(__file__).parents[1] / "python" / "sglang_omni" / "models"
_CONFIGS = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer_config.json", "special_tokens_map.json"),
)
_LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)
# Texts, and numbers that are weights.
_LEFT_OUT = ("chat_template", "mel_filters")


def facts_of(model_id: str, folder: Path) -> dict[str, Any]:
    files = {path.name.removesuffix(".gz"): path for path in sorted(folder.iterdir()) if path.is_file()}
    facts: dict[str, Any] = {"id": model_id, "configs": {}, "listing": {}}
    for name in _CONFIGS:
        if name in files:
            fields = json.loads(_content(files[name]))
            facts["configs"][name] = {key: fields[key] for key in fields if key not in _LEFT_OUT}
            if decoder := facts["configs"][name].pop("added_tokens_decoder", {}):
                facts["added_tokens"] = added_tokens_of(decoder)
    for name, path in files.items():
        if name.endswith(".index.json"):
            index = json.loads(_content(path))
            facts["tensors"] = shapes_of(dict.fromkeys(index["weight_map"]))
            facts["total_size"] = index.get("metadata", {}).get("total_size")
            facts["listing"] |= dict.fromkeys(sorted(set(index["weight_map"].values())))
        if name == "vocab.json":
            facts["vocabulary"] = len(json.loads(_content(path)))
        if not name.endswith(".seen"):
            facts["listing"][name] = len(_content(path))
    return facts


def added_tokens_of(decoder: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Entries that stand for exactly these tokens: one for all of a row, whose last numbers have one step."""
    rows: list[list[tuple[int, Mapping[str, Any]]]] = []
    for token_id, token in sorted((int(token_id), token) for token_id, token in decoder.items()):
        if not (rows and _continues(rows[-1], token_id, token)):
            rows.append([])
        rows[-1].append((token_id, token))
    return [
        {"id": row[0][0], "content": _row_pattern([token["content"] for _, token in row])}
        | {name: value for name, value in row[0][1].items() if name != "content" and value != TOKEN[name]}
        for row in rows
    ]


def _continues(row: Sequence[tuple[int, Mapping[str, Any]]], token_id: int, token: Mapping[str, Any]) -> bool:
    (last_id, last), text = row[-1], [*(token["content"] for _, token in row), token["content"]]
    return (
        token_id == last_id + 1
        and {**last, "content": ""} == {**token, "content": ""}
        and all(_LAST_NUMBER.fullmatch(content) for content in text[-2:])
        and list(expanded(_row_pattern(text))) == text
    )


def _row_pattern(contents: Sequence[str]) -> str:
    if len(contents) == 1:
        return contents[0]
    found = [_LAST_NUMBER.fullmatch(content) for content in contents]
    before, first, after = found[0].groups()
    step = int(found[1][2]) - int(first)
    span = f"{first}-{found[-1][2]}" + (f"/{step}" if step != 1 else "")
    return f"{before}{{{span}}}{after}"


def shapes_of(tensors: Mapping[str, str | None]) -> dict[str, str | None]:
    """Shapes by patterns of names, from those by names: "151936x2048", or None where they are not known."""
    names: dict[str | None, list[str]] = defaultdict(list)
    for name, shape in tensors.items():
        names[shape].append(name)
    return dict(sorted((pattern, shape) for shape, same in names.items() for pattern in patterns_of(same)))


def _with_shapes(new: Mapping[str, str | None], old: Mapping[str, str | None]) -> dict[str, str | None]:
    """The patterns of ``new``, with the shapes that were written before: an index tells none."""
    known = {name: shape for pattern, shape in old.items() for name in expanded(pattern)}
    return shapes_of({name: known.get(name) for pattern in new for name in expanded(pattern)})


def patterns_of(names: Iterable[str]) -> list[str]:
    """Patterns that stand for exactly these names: ``layers.{0-47}.weight``."""
    numbers: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name in names:
        numbers[re.sub(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", "{}", name)].add(
            tuple(int(number) for number in re.findall(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", name))
        )
    return sorted(pattern for skeleton, found in numbers.items() for pattern in _patterns(skeleton, found))


def _patterns(skeleton: str, found: set[tuple[int, ...]]) -> list[str]:
    columns = [sorted(set(column)) for column in zip(*found, strict=True)]
    spans = [(column[0], column[-1]) for column in columns]
    if prod(last - first + 1 for first, last in spans) == len(found):
        for first, last in spans:
            skeleton = skeleton.replace("{}", str(first) if first == last else f"{{{first}-{last}}}", 1)
        return [skeleton]
    # The first number whose values differ splits them.
    place = next(place for place, column in enumerate(columns) if len(column) > 1)
    return [
        pattern
        for value in columns[place]
        for pattern in _patterns(skeleton, {each for each in found if each[place] == value})
    ]


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("id")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", required=True)
    args = parser.parse_args(argv)
    path = MODELS / args.family / "published.json"
    models: list[dict[str, Any]] = json.loads(path.read_bytes()) if path.is_file() else []
    new = facts_of(args.id, args.folder) | {"source": args.source}
    for place, old in enumerate(models):
        if old["id"] == args.id:
            listing = {**old.get("listing", {}), **new["listing"]}
            models[place] = {**old, **new, "listing": dict(sorted(listing.items()))}
            if "tensors" in new:
                models[place]["tensors"] = _with_shapes(new["tensors"], old.get("tensors", {}))
            break
    else:
        models.append(new)
    path.write_text(json.dumps(models, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
