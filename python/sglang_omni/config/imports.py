"""Dotted import paths, as configs name factories and functions by them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.abc import InspectLoader
from pathlib import Path
from typing import Any

from sglang_omni.config.nearest import did_you_mean


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
        raise ImportError(_missing_module(path, module_path, exc)) from exc
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportError(_missing_name(path, module_path, name, vars(module))) from None


def import_beside(config_file: Path | None = None) -> None:
    """Lets a config name functions in modules beside it, and in the current directory.

    They come last: what is installed keeps its name. Processes that are started get the same path.
    """
    folders = [] if config_file is None else [config_file.absolute().parent]
    for folder in (*folders, Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def import_callable(path: str, *, stage: str | None, field: str) -> Callable[..., Any]:
    """``import_string`` for a config's field, whose errors say which field of which stage it is.

    Raises:
        ImportError: as ``import_string``.
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


@dataclass(frozen=True)
class Signature:
    """The arguments a callable takes. ``names`` is None where only importing it would tell."""

    names: frozenset[str] | None = None
    required: frozenset[str] = frozenset()

    def accepts(self, name: str) -> bool:
        return self.names is None or name in self.names


def inspect_path(path: str) -> Signature:
    """Find out what a dotted path names without running the module it is in.

    Factories live in modules that import torch; this reads their source instead, so that a parent
    process can check a whole config in milliseconds before it starts any other.

    Raises:
        ImportError: the module does not exist, does not parse, or has no such name.
        ValueError: ``path`` has no dot.
    """
    module_path, name = _split(path)
    if module_path in sys.modules:
        return signature_of(import_string(path))
    try:
        spec = importlib.util.find_spec(module_path)
    except ModuleNotFoundError as exc:
        raise ImportError(_missing_module(path, module_path, exc)) from exc
    if spec is None:
        raise ImportError(f"cannot import {path!r}: no module named {module_path!r}")
    source = spec.loader.get_source(module_path) if isinstance(spec.loader, InspectLoader) else None
    if source is None:  # an extension module
        return Signature()
    try:
        tree = ast.parse(source)
    except SyntaxError as exc:
        raise ImportError(f"cannot import {path!r}: {spec.origin}, line {exc.lineno}: {exc.msg}") from exc
    names = set()
    for statement in _module_level(tree):
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return _signature_in(statement)
        names |= _names_bound(statement)
    if name not in names and not names & {"*", "__getattr__"}:
        raise ImportError(_missing_name(path, module_path, name, names))
    return Signature()


def _split(path: str) -> tuple[str, str]:
    module_path, _, name = path.rpartition(".")
    if not module_path or not name:
        raise ValueError(f"{path!r} is not a dotted path of the form 'package.module.name'")
    return module_path, name


def _missing_module(path: str, module_path: str, exc: ModuleNotFoundError) -> str:
    missing = exc.name or module_path
    if f"{module_path}.".startswith(f"{missing}."):
        return f"cannot import {path!r}: no module named {missing!r}"
    return f"cannot import {path!r}: module {module_path!r} needs {missing!r}, which is not installed"


def _missing_name(path: str, module_path: str, name: str, names: Any) -> str:
    hint = did_you_mean(name, (n for n in names if not n.startswith("_")))
    return f"cannot import {path!r}: module {module_path!r} has no {name!r}{hint}"


def signature_of(found: Any) -> Signature:
    """The arguments that an object takes when it is called."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # not a callable, or one written in C
        return Signature()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return Signature()
    return Signature(
        names=frozenset(p.name for p in parameters),
        required=frozenset(
            p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        ),
    )


def _signature_in(function: ast.FunctionDef) -> Signature:
    arguments = function.args
    if arguments.kwarg is not None or function.decorator_list:
        return Signature()
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = positional[: len(positional) - len(arguments.defaults)]
    keyword_required = [
        argument
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    return Signature(
        names=frozenset(argument.arg for argument in [*positional, *arguments.kwonlyargs]),
        required=frozenset(argument.arg for argument in [*without_default, *keyword_required]),
    )


def _module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement that runs when the module does: also those under ``if``, ``try`` and ``with``."""
    pending: list[ast.AST] = list(reversed(tree.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            pending += reversed(list(ast.iter_child_nodes(node)))


def _names_bound(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name.partition(".")[0] for alias in aliases}
        case ast.Assign() | ast.AnnAssign() | ast.For() | ast.With():
            return {
                n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
    return set()
