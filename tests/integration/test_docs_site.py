"""The docs site builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / "build/docs/bin/mkdocs"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert MKDOCS.exists(), "mkdocs is not installed: run `make docs`, or `make test-long`, which does"
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert built == pages | {Path("404")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', text)
        loaded += re.findall(
            r'<link[^>]*rel="(?:stylesheet|icon|preload|preconnect)"[^>]*href="([^"]+)"', text
        )
        assert loaded
        assert [address for address in loaded if "//" in address] == []


def test_no_link_leaves_the_folder(site: Path) -> None:
    """Files of the repository outside of docs/ are named there without a link."""
    for page in set(site.rglob("*.html")) - {site / "404.html"}:
        for target in re.findall(r'<a [^>]*href="([^"#:]+)', page.read_text()):
            assert (page.parent / target).resolve().is_relative_to(site), (page.name, target)


def test_the_clients_methods_have_their_docstrings(site: Path) -> None:
    text = (site / "reference/client-api.html").read_text()
    for name in ("Client.completion", "SyncClient.transcribe", "GenerateRequest", "SamplingParams"):
        assert f'id="sglang_omni.client.{name}"' in text, name
