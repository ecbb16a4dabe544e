"""Dotted import paths, as configs name factories and functions by them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import InspectLoader
from typing import Any

from sglang_omni.config.strict import did_you_mean


def import_string(path: str) -> Any:
    """The object that ``"package.module.name"`` stands for.

    Raises:
        ImportError: the module or the name in it does not exist, or the module fails to import.
        ValueError: ``path`` has no dot.
    """
    module_path, name = _split(path)
    try:
        module = importlib.import_module(module_path)
    except ModuleNotFoundError as exc:
        raise ImportError(_module_error(path, module_path, exc)) from exc
    try:
        return getattr(module, name)
    except AttributeError:
        hint = did_you_mean(name, (n for n in vars(module) if not n.startswith("_")))
        raise ImportError(f"cannot import {path!r}: module {module_path!r} has no {name!r}{hint}") from None


def import_callable(path: str, *, stage: str | None, field: str) -> Callable[..., Any]:
    """``import_string`` for a config's field, whose errors say which field of which stage it is.

    Raises:
        ImportError: as ``import_string``, and for a module that raises while it is imported.
        TypeError: what ``path`` names cannot be called.
    """
    where = f"stage {stage!r}: {field}" if stage is not None else field
    try:
        found = import_string(path)
    except (ImportError, ValueError) as exc:
        raise ImportError(f"{where}: {exc}") from exc
    if not callable(found):
        raise TypeError(f"{where}: {path!r} is a {type(found).__name__}, not a callable")
    return found


def find_import_error(path: str) -> str | None:
    """What is wrong with a dotted path, found without running the module it is in, or None.

    Factories live in modules that import torch; this looks at the module's source instead, so a
    parent process can check a whole config before it starts any other.
    """
    try:
        module_path, name = _split(path)
    except ValueError as exc:
        return str(exc)
    if module_path in sys.modules:
        module = sys.modules[module_path]
        if hasattr(module, name):
            return None
        hint = did_you_mean(name, (n for n in vars(module) if not n.startswith("_")))
        return f"cannot import {path!r}: module {module_path!r} has no {name!r}{hint}"
    try:
        spec = importlib.util.find_spec(module_path)
    except ModuleNotFoundError as exc:
        return _module_error(path, module_path, exc)
    if spec is None:
        return f"cannot import {path!r}: no module named {module_path!r}"
    source = spec.loader.get_source(module_path) if isinstance(spec.loader, InspectLoader) else None
    if source is None:
        return None
    try:
        names = _top_level_names(ast.parse(source))
    except SyntaxError as exc:
        return f"cannot import {path!r}: {spec.origin}, line {exc.lineno}: {exc.msg}"
    if names is None or name in names:
        return None
    hint = did_you_mean(name, (n for n in names if not n.startswith("_")))
    return f"cannot import {path!r}: module {module_path!r} has no {name!r}{hint}"


def _split(path: str) -> tuple[str, str]:
    module_path, _, name = path.rpartition(".")
    if not module_path or not name:
        raise ValueError(f"{path!r} is not a dotted path of the form 'package.module.name'")
    return module_path, name


def _module_error(path: str, module_path: str, exc: ModuleNotFoundError) -> str:
    missing = exc.name or module_path
    if module_path == missing or module_path.startswith(missing + "."):
        return f"cannot import {path!r}: no module named {missing!r}"
    return f"cannot import {path!r}: module {module_path!r} needs {missing!r}, which is not installed"


def _top_level_names(tree: ast.Module) -> set[str] | None:
    """Names a module defines at its top level; None where only running it would tell."""
    names: set[str] = set()
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                names.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                pending += [
                    child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node
                ]
    return None if "*" in names or "__getattr__" in names else names
