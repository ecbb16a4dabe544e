"""Dotted import paths, by which configs name factories and functions."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import symtable
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, is_typeddict

from sglang_omni.config.nearest import did_you_mean

# ``**args: Unpack[SomeTypedDict]``, as an annotation.
_UNPACK = re.compile(r"(?:\w+\.)?Unpack\[(\w+)\]")


def import_string(path: str) -> Any:
    """The object that ``"package.module.name"`` stands for.

    Raises:
        ImportError: The module or the name in it does not exist, or the module fails to import.
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
    """Let a config name functions in modules of its own folder and of the current directory.

    Both folders go to the end of ``sys.path``, so installed modules keep their names. Processes that are
    started get the same path.
    """
    folders = [] if config_file is None else [config_file.absolute().parent]
    for folder in (*folders, Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def import_callable(path: str, *, stage: str | None, field: str) -> Callable[..., Any]:
    """The callable at a dotted path; errors name the field of the config.

    Args:
        path: ``"package.module.name"``.
        stage: The stage whose field it is; None for a field of the pipeline.
        field: The field's name.

    Raises:
        ImportError: The path has no dot, its module or name does not exist, or the module fails to import.
        TypeError: The object cannot be called.
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
    """The arguments a callable takes. ``names`` is None if any may be, or only an import would show."""

    names: frozenset[str] | None = None
    required: frozenset[str] = frozenset()

    def accepts(self, name: str) -> bool:
        return self.names is None or name in self.names


def inspect_path(path: str) -> Signature:
    """The arguments of what a dotted path names, from the module's source: the module is not run.

    Factories live in modules that import torch and read the environment, which ``env_defaults`` must have set
    by then. Unimported, a whole config is checked in milliseconds, also where torch is not installed.

    Raises:
        ImportError: The module does not exist, does not parse, or has no such name.
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
    source = _source_in(spec, module_path)
    if source is None:  # an extension module
        return Signature()
    try:
        tree = ast.parse(source)
        table = symtable.symtable(source, module_path, "exec")
    except SyntaxError as exc:
        raise ImportError(f"cannot import {path!r}: {spec.origin}, line {exc.lineno}: {exc.msg}") from exc
    names = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }
    lines = {scope.get_lineno() for scope in table.get_children() if scope.get_name() == name}
    takes_all = False
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name and node.lineno in lines:
            return _signature_in(node, tree)
        takes_all |= isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    if not takes_all and not names & {name, "__getattr__"}:
        raise ImportError(_missing_name(path, module_path, name, names))
    return Signature()


def _source_in(spec: ModuleSpec | None, module_path: str) -> str | None:
    loader = None if spec is None else spec.loader
    return loader.get_source(module_path) if isinstance(loader, InspectLoader) else None


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
    """The arguments of an imported object."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # not a callable, or one written in C
        return Signature()
    keys: Iterable[str] = ()
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            wanted = _UNPACK.fullmatch(str(p.annotation))
            unpacked = getattr(found, "__globals__", {}).get(wanted[1]) if wanted else None
            if unpacked is None or not is_typeddict(unpacked):
                return Signature()
            keys = unpacked.__optional_keys__
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    return Signature(
        names=frozenset([*(p.name for p in named), *keys]),
        required=frozenset(p.name for p in named if p.default is p.empty and p.kind is not p.VAR_POSITIONAL),
    )


def _signature_in(function: ast.FunctionDef, module: ast.Module) -> Signature:
    arguments = function.args
    keys: Iterable[str] = ()
    if arguments.kwarg is not None:
        wanted = _UNPACK.fullmatch(ast.unparse(arguments.kwarg.annotation or ast.Constant(None)))
        found = _keys_of(wanted[1], module) if wanted else None
        if found is None:
            return Signature()
        keys = found
    if function.decorator_list:
        return Signature()
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [
        it for it, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    ]
    return Signature(
        names=frozenset([*(argument.arg for argument in [*positional, *arguments.kwonlyargs]), *keys]),
        required=frozenset(argument.arg for argument in required),
    )


def _keys_of(name: str, module: ast.Module) -> set[str] | None:
    """The keys of a TypedDict that a module defines or imports; None if its source is not found."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and node.name == name:
            lines = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
            keys = {target.id for target in lines if isinstance(target, ast.Name)}
            for base in map(ast.unparse, node.bases):
                inherited = set() if base == "TypedDict" else _keys_of(base, module)
                if inherited is None:
                    return None
                keys |= inherited
            return keys
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            if node.level or node.module is None:
                return None
            try:
                source = _source_in(importlib.util.find_spec(node.module), node.module)
            except ModuleNotFoundError:
                return None
            return None if source is None else _keys_of(name, ast.parse(source))
    return None
