"""Compares what the chart renders with what Kustomize does: `same_manifests.py KUSTOMIZED CHART`.

They are two ways to the same objects, and neither may have what the other lacks. Helm's own labels aside,
each field is compared. Lists of what has names have no order, as for Kubernetes itself. Differences are
printed, and are an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_NAME, _INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
_HELMS = {_INSTANCE, "app.kubernetes.io/managed-by", "helm.sh/chart"}


def fields(text: str) -> dict[str, Any]:
    """The values of all objects of a file, by kind, name and path; each empty list or map is a value, too."""
    found: dict[str, Any] = {}
    for each in yaml.safe_load_all(text):
        if each:
            found.update(_walk(each, f"{each['kind']}/{each['metadata']['name']}"))
    return found


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _walk(each, f"{path} {key}")
    elif isinstance(value, list) and value:
        names = [each.get("name") if isinstance(each, dict) else None for each in value]
        keys = names if None not in names and len(set(names)) == len(names) else range(len(value))
        for key, each in zip(keys, value, strict=True):
            yield from _walk(each, f"{path} {key}")
    else:
        yield path, value


def differences(kustomized: str, chart: str) -> list[str]:
    """A line for each field that one lacks, that differs, or that selects pods of any release."""
    wanted, given = fields(kustomized), fields(chart)
    found = []
    for path, value in given.items():
        *parent, key = path.split(" ")
        # Two releases may share a namespace.
        if key == _NAME and " ".join([*parent, _INSTANCE]) not in given:
            found.append(f"{path}: without {_INSTANCE}")
        if key in _HELMS:
            continue
        if path not in wanted:
            found.append(f"{path}: {value!r} in the chart alone")
        elif value != wanted[path]:
            found.append(f"{path}: {wanted[path]!r}, and {value!r} in the chart")
    return found + [f"{path}: {wanted[path]!r} is not in the chart" for path in wanted if path not in given]


if __name__ == "__main__":
    found = differences(*(Path(name).read_text() for name in sys.argv[1:]))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
