"""docs/router.md lists the options, metrics and endpoints that there are."""

from __future__ import annotations

import re
from pathlib import Path

from generated_page import load_script

from sglang_omni.router.flags import flag_names, options

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "router.md").read_text()


def test_tables_are_what_the_code_says() -> None:
    script = load_script("router_reference")
    assert script.written(TEXT) == TEXT, "run scripts/router_reference.py"


def test_both_launchers_have_the_same_options() -> None:
    """The binary's are the fields of the Rust `Config`, and their aliases."""
    source = (ROOT / "rust/router/src/app/config.rs").read_text()
    struct = source.split("pub struct Config {")[1].split("\n}\n")[0]
    theirs = set(re.findall(r"^    pub (\w+):", struct, re.M)) | set(re.findall(r'alias = "(\w+)"', struct))
    ours = {name.replace("-", "_") for each, _ in options() for name in flag_names(each)}
    assert ours == theirs


def test_every_endpoint_is_there() -> None:
    source = "".join(path.read_text() for path in (ROOT / "rust/router/src/admin").glob("*.rs"))
    # The arms of a match over paths: what stands before the arrow.
    arms = re.findall(r'^ *((?:"/[a-z_/0-9]+" ?\|? ?)+)(?:if .*)?=>', source, re.M)
    answered = {path for arm in arms for path in re.findall(r'"([^"]+)"', arm)}
    assert {"/health", "/workers/drain", "/get_loads"} <= answered
    shown = set(re.findall(r"/[a-z_/0-9]+", TEXT.split("## Endpoints")[1].split("## Workers")[0]))
    assert answered - shown == set()
