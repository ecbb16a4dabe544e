"""LoRA adapters as a command line gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_omni import hub
from sglang_omni.serve.launch.flags import not_empty


def adapter(text: str) -> str:
    """For ``type=``: ``NAME=PATH``, or a path that is its own name."""
    name, _, path = not_empty(text).rpartition("=")
    return f"{name or path}={path}"


def _adapter_files(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of an adapter, also if its repository holds the merged model beside it."""
    return ("adapter_model.safetensors",)


def adapters_by_name(adapters: list[str]) -> dict[str, str]:
    """
    Raises:
        ValueError: Two have one name, or one is not an adapter in PEFT's layout.
    """
    paths: dict[str, str] = {}
    for name, _, path in (adapter.partition("=") for adapter in adapters):
        if name in paths:
            raise ValueError(f"--lora-paths: two adapters are called {name!r}")
        directory = hub.download(path, own_files=_adapter_files) if hub.is_repo_id(path) else Path(path)
        if not (directory / "adapter_config.json").is_file():
            raise ValueError(
                f"--lora-paths {name}={path}: no adapter there (no adapter_config.json); give the directory "
                "of one in PEFT's layout, or an id of the hub"
            )
        paths[name] = str(directory.resolve())
    return paths
