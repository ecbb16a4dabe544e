"""What keeps the rooms of the code apart: no circles of imports, no name twice, no file too long."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from sglang_omni.families import FAMILIES

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "python" / "sglang_omni"
LONGEST_FILE = 500


def _sources() -> dict[str, tuple[Path, ast.Module]]:
    """Module -> its file, and what is in it."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[module] = (file, ast.parse(file.read_text(encoding="utf-8")))
    return found


def _imports(tree: ast.Module, modules: dict[str, tuple[Path, ast.Module]]) -> set[str]:
    """The modules that this one imports anywhere: in its functions and for type checkers too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in modules else node.module)
    return found & modules.keys()


def _circles(graph: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Strongly connected components of more than one module: modules that are left once those that import
    nothing, or that nothing imports, have been taken away again and again, and that reach one another."""
    left = {module: set(imported) - {module} for module, imported in graph.items()}
    while True:
        imported_by_any = set().union(*left.values())
        gone = {module for module, imported in left.items() if not imported or module not in imported_by_any}
        if not gone:
            break
        left = {module: imported - gone for module, imported in left.items() if module not in gone}

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        stack = [start]
        while stack:
            for module in left[stack.pop()] - seen:
                seen.add(module)
                stack.append(module)
        return seen

    reach = {module: reachable(module) for module in left}
    return sorted({tuple(sorted(o for o in reach[m] if m in reach[o])) for m in left if m in reach[m]})


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert _circles(graph) == [("b", "c")]


def test_no_modules_import_one_another_in_a_circle() -> None:
    modules = _sources()
    graph = {module: _imports(tree, modules) for module, (_, tree) in modules.items()}
    assert _circles(graph) == []


def test_no_family_of_models_imports_another() -> None:
    """What two of them need has a room beside them, with no family's name, which imports none of them."""
    owners = {family.name: family.config.partition(":")[0].rpartition(".")[0] for family in FAMILIES}
    modules = _sources()

    def family_of(module: str) -> str | None:
        return next((name for name, room in owners.items() if f"{module}.".startswith(f"{room}.")), None)

    found = {
        (family_of(module), other, imported)
        for module, (_, tree) in modules.items()
        if module.startswith("sglang_omni.models.")
        for imported in _imports(tree, modules)
        if (other := family_of(imported)) not in (None, family_of(module))
    }
    # Its thinker is one of the language models.
    assert {(family, other) for family, other, _ in found} == {("speech_chat", "text")}, found


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for module, (_, tree) in _sources().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    files = [
        file
        for folder in ("python", "rust", "tests", "benches", "examples", "scripts")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".pyi", ".rs"} and "target" not in file.parts
    ]
    assert len(files) > 500
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_two_files_of_tests_have_one_name() -> None:
    """Without packages around them, pytest imports them by their names alone."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name, count in names.items() if count > 1} == set()


def test_no_test_changes_the_clock_of_event_loops() -> None:
    # A server's loop beside the test, which reads it meanwhile, would sleep for hours.
    # A test gives the module that it tests a clock: setattr(module, "time", SimpleNamespace(monotonic=...)).
    changed = re.compile(r"""setattr\(\s*(\w+\.)*time,\s*["']monotonic|["']time\.monotonic["']""")
    assert changed.search('monkeypatch.setattr(module.time, "monotonic", clock)')
    files = (ROOT / "tests").rglob("*.py")
    changing = {str(file) for file in files if changed.search(file.read_text(encoding="utf-8"))}
    assert changing <= {str(Path(__file__))}
