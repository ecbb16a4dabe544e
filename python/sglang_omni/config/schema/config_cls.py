"""The class that a config's ``config_cls`` names."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from typing import Any, TypeVar

from sglang_omni.config.imports import import_string
from sglang_omni.config.nearest import did_you_mean

_MODELS = "sglang_omni.models"
_T = TypeVar("_T")


def find_config_cls(name: Any, *, default: type[_T], root: type[Any]) -> type[_T]:
    """The config class that a dotted path, or the bare name of a known class, stands for.

    Args:
        name: The value of ``config_cls``.
        default: The class if ``name`` is None or a base of it; any other must be a subclass of it.
        root: The base of all config classes: itself and its subclasses are known.

    Raises:
        ImportError: There is no such class, or several.
        TypeError: It is not a ``default``.
    """
    if name is None:
        return default
    found = _find(name, root) if isinstance(name, str) else name
    if isinstance(found, type) and issubclass(default, found):
        return default
    if not (isinstance(found, type) and issubclass(found, default)):
        raise TypeError(f"config_cls {name!r} is not a {default.__name__}")
    return found


def _find(name: str, root: type[Any]) -> Any:
    known = [root, *_subclasses(root)]
    # Looked up before importing: a class of __main__ or of a function cannot be imported by its path.
    for cls in reversed(known):
        if name == f"{cls.__module__}.{cls.__qualname__}":
            return cls
    if "." in name:
        return import_string(name)
    bare = [cls for cls in known if cls.__name__ == name] or list(_model_configs(name))
    if not bare:
        raise ImportError(
            f"config_cls {name!r} is not a known config; name a class of your own by its dotted path"
            f"{did_you_mean(name, (cls.__name__ for cls in known))}"
        )
    if len(bare) > 1:
        paths = sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in bare)
        raise ImportError(f"config_cls {name!r} could be any of {paths}; give the dotted path")
    return bare[0]


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _model_configs(name: str) -> Iterator[type[Any]]:
    """The class ``name`` in any ``models/<family>/config.py``."""
    models = importlib.import_module(_MODELS)
    for family in pkgutil.iter_modules(models.__path__):
        module_path = f"{_MODELS}.{family.name}.config"
        if family.ispkg and importlib.util.find_spec(module_path) is not None:
            found = getattr(importlib.import_module(module_path), name, None)
            if found is not None:
                yield found
