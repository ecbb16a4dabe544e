"""What a text says to install can be installed: this distribution by its own name, and extras that it has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sglang_omni.packages import DISTRIBUTION, install_line

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What installs the other project. Its name alone may stand: it is also the router's program, and a crate.
OTHER_PROJECT = re.compile(r"sglang-omni\[|pip install [^`\n]*\bsglang-omni\b|sglang_omni-[^\s]*\.whl")


def texts() -> list[Path]:
    folders = ("python", "docs", "examples", "scripts")
    found = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    return [*found, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile", ROOT / "pyproject.toml"]


def test_the_distribution_has_one_name() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_no_text_installs_the_other_project() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in texts()
        for found in OTHER_PROJECT.finditer(path.read_text())
        # The peer of the benchmarks is that project.
        if "build/peers" not in found.group()
    ]
    assert not wrong


def test_texts_name_extras_that_exist() -> None:
    extras = set(PROJECT["optional-dependencies"])
    named = re.compile(r"install_line\(['\"](\w+)['\"]\)|sgl[-_]omni(?:-\*\.whl\))?\[([\w,]+)\]")
    found = {
        extra
        for path in texts()
        for match in named.finditer(path.read_text())
        for extra in (match.group(1) or match.group(2)).split(",")
    }
    assert {"serve", "demo", "ray", "nixl"} <= found
    assert found - extras == set()


def test_outside_of_code_the_wheel_is_named_and_not_an_index() -> None:
    """No index has the distribution: its name alone fails while the wheel is not installed yet."""
    named = [
        str(path.relative_to(ROOT))
        for path in texts()
        if path.suffix == ".md" and f"pip install '{DISTRIBUTION}" in path.read_text()
    ]
    assert not named


def test_an_install_line() -> None:
    assert install_line("nixl") == "pip install 'sgl-omni[nixl]'"
