"""The HTTP API of a pipeline, and ``launch``, which starts servers of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_omni.serve.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    # Imported on first use: the supervisor of server replicas needs no web framework.
    if name == "create_app":
        from sglang_omni.serve.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
