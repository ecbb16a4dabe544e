"""Private names of other packages are used in one file a package, and every imported package is declared.

A private name changes without notice: `Qwen3OmniMoeProcessorKwargs._defaults` went between two minor
versions, and no model started any more. What an attribute belongs to is told from the source alone: a name
with an underscore is ours if the module defines it, or one of our modules that it imports does, and it does
not begin at something imported from elsewhere.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "sglang_omni"
OURS = "sglang_omni"

# The only files that may, and whose names: each says in its docstring for which versions, and why.
PLACES = {
    "versions/argparse.py": {"argparse"},
    "versions/asyncio.py": {"asyncio"},
    "versions/torch.py": {"torch"},
    "engines/sglang/compat.py": {"sglang"},
    # What SGLang compiles has no public names.
    "engines/sglang/kernels.py": {"sglang"},
    # Sizes SGLang's KV pool in its place.
    "engines/sglang/memory.py": {"sglang"},
    # A subclass of SGLang's scheduler: it has to override what that one calls itself.
    "engines/sglang/scheduler.py": {"sglang"},
    # NIXL's documented import is of `nixl._api`.
    "relay/one_sided/nixl.py": {"nixl"},
}
# With an underscore, and documented all the same.
DOCUMENTED = {
    *("_asdict", "_fields", "_make", "_replace"),  # of named tuples
    *("os._exit", "sys._getframe", "threading._shutdown"),
}


# Packages whose modules come from several distributions.
NAMESPACES = {"opentelemetry"}
NOT_DECLARED = {
    "pydantic-core": "pydantic brings the one version that it works with",
    "sgl-kernel": "SGLang's, on a GPU",
}
NOT_IMPORTED = {
    "python-multipart": "starlette's, for forms",
    "torchvision": "transformers', for images",
    "cuda-toolkit": "SGLang's compiler on a GPU",
    "pipecat-ai": "only Smart Turn's weights are read from its wheel",
    "httptools": "uvicorn's, which parses requests with it",
    **dict.fromkeys(
        ("fugashi", "jaconv", "mojimoji", "pyopenjtalk-plus", "unidic-lite"),
        "misaki's, for Japanese; of its own extra one is built from source, and one is downloaded",
    ),
    "nixl": "imported by a name that tells the CUDA version",
}


def normalized(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules() -> list[Path]:
    # Templates are copied by ``sgl-omni new``, and imported by no module.
    return sorted(
        path for path in PACKAGE.rglob("*.py") if "templates" not in path.relative_to(PACKAGE).parts
    )


def imports(path: Path) -> Iterator[tuple[str, str, int]]:
    """(name in the module, dotted name of what it is, line)."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno


@cache
def defined(path: Path) -> frozenset[str]:
    """The private names that a module gives to something."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            # What is stored into something else's attribute is that one's.
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
    return frozenset(name for name in found if is_private(name))


def own_module(dotted: str) -> Path | None:
    """The file of the longest part of a dotted name that is one of our modules."""
    parts = dotted.split(".")
    while parts and parts[0] == OURS:
        base = PACKAGE.joinpath(*parts[1:])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
        parts.pop()
    return None


def private_uses(path: Path) -> Iterator[tuple[int, str]]:
    """(line, what) of each private name that is not ours."""
    bound = {}
    inherited: set[str] = set()
    for name, dotted, line in imports(path):
        if dotted.split(".")[0] == OURS:
            if (module := own_module(dotted)) is not None:
                inherited |= defined(module)
            continue
        bound[name] = dotted
        if any(is_private(part) for part in dotted.split(".")):
            yield line, dotted
    ours = inherited | defined(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            source = ast.unparse(node)
            root = re.match(r"\w+", source)
            is_foreign = root is not None and root[0] in bound
            known = inherited if source.startswith("super().") else ours
            if not {node.attr, source} & DOCUMENTED and (is_foreign or node.attr not in known):
                yield node.lineno, source
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A module to import by its name.
            is_module = re.fullmatch(r"[a-z]\w*(\.\w+)*\._[a-z]\w*(\.\w+)*", node.value)
            if is_module and not node.value.startswith(f"{OURS}."):
                yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1]
            named = name.value if isinstance(name, ast.Constant) else ""
            if is_private(named) and named not in ours | DOCUMENTED:
                yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_names_are_our_own(path: Path) -> None:
    found = [f"line {line}: {what}" for line, what in private_uses(path)]
    if str(path.relative_to(PACKAGE)) in PLACES:
        assert found, "nothing private is used here any more: take the file out of PLACES"
    else:
        assert not found, "take a public name, or put it into a file of PLACES"


FOREIGN = [
    "from transformers import Kwargs\nKwargs._defaults",
    "import torch\ntorch.ops.mkldnn._linear(1)",
    "from asyncio.tasks import _enter_task",
    "import importlib\nimportlib.import_module('nixl_cu13._api')",
    "def f(group):\n    return group._timeout",
    "def f(group):\n    group._timeout = 1",
    "from library import Base\nclass Own(Base):\n    def f(self):\n        self._hidden()",
    "from library import Base\nclass Own(Base):\n    def _f(self):\n        super()._f()",
    "def f(model):\n    return getattr(model, '_hidden')",
    "import argparse\ndef f(parser: argparse._ActionsContainer): ...",
]
OWN = [
    "class Own:\n    def __init__(self):\n        self._x = 1\ndef f(own):\n    return own._x",
    "import os\nos._exit(1)",
    "def f(point):\n    return point._replace(x=1)",
    "from sglang_omni.relay import shm\ndef f(relay):\n    return relay.__class__",
]


@pytest.mark.parametrize("source", [*FOREIGN, *OWN])
def test_what_is_found(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert bool(list(private_uses(path))) == (source in FOREIGN)


def test_insides_of_models_in_transformers_are_imported_in_one_file_a_room() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        for _, dotted, _ in imports(path)
        if dotted.startswith("transformers.models.")
    }
    rooms = ("omni", "qwen2_5_omni/components", "qwen3_omni/components")
    assert found == {f"models/{room}/reference.py" for room in rooms}


def _of_namespace(distributions: set[str], dotted: str) -> str:
    """Which of the distributions that share a package has this module, by its name."""
    words = dotted.replace(".", "-").replace("_", "-")
    having = [name for name in distributions if words.startswith(name)]
    return max(having, key=len, default=f"{words.split('-')[0]}-api")


def test_every_imported_package_is_declared_and_every_declared_one_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    declared = {normalized(line) for line in lines} - {project["name"]}
    distributions = packages_distributions()
    imported = set()
    for path in modules():
        for _, dotted, _ in imports(path):
            top = dotted.split(".")[0]
            if top not in sys.stdlib_module_names and top != OURS:
                found = {normalized(name) for name in distributions.get(top, [top])}
                imported |= {_of_namespace(found, dotted)} if top in NAMESPACES else found
    assert imported - declared == NOT_DECLARED.keys()
    assert declared - imported == NOT_IMPORTED.keys()
