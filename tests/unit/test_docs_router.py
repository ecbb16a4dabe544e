"""docs/router.md lists the options, metrics and endpoints that there are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "router.md").read_text()


def test_tables_are_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location(
        "router_reference", ROOT / "scripts" / "router_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.written(TEXT) == TEXT, "run scripts/router_reference.py"


def test_every_endpoint_is_there() -> None:
    source = "".join(path.read_text() for path in (ROOT / "rust/router/src/admin").glob("*.rs"))
    # The arms of a match over paths: what stands before the arrow.
    arms = re.findall(r'^ *((?:"/[a-z_/0-9]+" ?\|? ?)+)(?:if .*)?=>', source, re.M)
    answered = {path for arm in arms for path in re.findall(r'"([^"]+)"', arm)}
    assert {"/health", "/workers/drain", "/get_loads"} <= answered
    shown = set(re.findall(r"/[a-z_/0-9]+", TEXT.split("## Endpoints")[1].split("## Workers")[0]))
    assert answered - shown == set()
