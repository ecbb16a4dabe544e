"""What pages quote exists: error texts in the code, flags of ours beside those of others, make targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from generated_page import ROOT

from sglang_omni import launch_server
from sglang_omni.router.flags import flag_names, options

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")])
# Between two pieces of one text: Python joins neighbours, Rust has a backslash at a line's end.
_JOINT = re.compile(r"""["']\s*\n\s*f?["']|\\\n\s*""")
_HEADING = re.compile(r"^### `(.+)`$", re.M)
TROUBLES = _HEADING.findall((DOCS / "troubleshooting.md").read_text())


@pytest.fixture(scope="module")
def source() -> str:
    files = [*ROOT.glob("python/sglang_omni/**/*.py"), *ROOT.glob("rust/router/src/**/*.rs")]
    texts = [path.read_text() for path in [*files, ROOT / "scripts/preflight.sh"]]
    return _JOINT.sub("", "\n".join(texts))


def test_there_are_enough_of_them() -> None:
    assert len(TROUBLES) >= 25
    assert len(set(TROUBLES)) == len(TROUBLES)


@pytest.mark.parametrize("text", TROUBLES)
def test_the_error_is_one_that_is_reported(text: str, source: str) -> None:
    pieces = [piece for piece in re.split(r"\s*…\s*", text) if piece]
    assert any(len(piece) >= 9 for piece in pieces), "too short to be found by"
    assert [piece for piece in pieces if piece not in source] == []


def _column(section: str, index: int) -> set[str]:
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", row)[index] for row in rows]
    return {flag for cell in cells for flag in re.findall(r"(--[a-z][a-z0-9-]+)", cell)}


def test_flags_that_are_said_to_be_here_are() -> None:
    text = (DOCS / "migration.md").read_text()
    route, serve = text.split("## From sglang-router")[1].split("## From sglang-omni")
    ours = {f"--{name}" for each, _ in options() for name in flag_names(each)}
    same = set(re.findall(r"`(--[a-z-]+)`", route.split("Other defaults")[0]))
    assert len(same) > 25
    assert same | _column(route, 2) <= ours
    assert _column(serve, 2) <= ours | set(launch_server.build_parser().options()) | {"--config"}


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text()))
        assert named <= targets, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    title, first = page.read_text().split("\n\n")[:2]
    assert re.fullmatch(r"# .+", title)
    assert re.match(r"[A-Z`\[]", first), first
    assert re.search(r"[.:]( |$)", first.replace("\n", " ")), first


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_to_pages_lead_to_pages(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and target.endswith(".md"):
            assert (page.parent / target).exists(), target
