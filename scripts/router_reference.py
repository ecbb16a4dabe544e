"""Write the tables of docs/router.md that follow from the code: the router's options and its metrics.

Run it after a change of either; a test compares its output with the committed file.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_omni._core import RouterServer
from sglang_omni.router import RouterConfig
from sglang_omni.router.flags import default_text, flag_names, options

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "router.md"


def options_table() -> str:
    """A line for each field of RouterConfig, by section."""
    lines = ["| option | default | what it does |", "|---|---|---|"]
    section = ""
    for each, kind in options():
        if each.metadata["section"] != section:
            section = each.metadata["section"]
            lines.append(f"| **{section}** | | |")
        own, *others = flag_names(each)
        value = "" if kind is bool else f" {each.metadata['metavar'] or each.name.upper()}"
        several = "..." if kind == list[str] else ""
        also = "".join(f"; also `--{name}`" for name in others)
        default = default_text(each)
        text = f"{each.metadata['help']}{also}".replace("|", "\\|")
        lines.append(f"| `--{own}{value}{several}` | {f'`{default}`' if default else ''} | {text} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """A line for each metric that a running router has."""
    config: dict[str, Any] = vars(RouterConfig(port=0, threads=1, log_level="error"))
    server = RouterServer(json.dumps(config))
    try:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.stop()
    lines = ["| metric | type | |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {about} |" for name, kind, about in _described(text)]
    return "\n".join(lines)


def _described(text: str) -> Iterator[tuple[str, str, str]]:
    for name, about in re.findall(r"^# HELP (\S+) (.*)$", text, re.M):
        kind = re.search(rf"^# TYPE {name} (\w+)$", text, re.M)
        assert kind is not None, f"{name} has no # TYPE"
        yield name, kind[1], about


def written(text: str) -> str:
    """The text with its tables as they should be."""
    for name, table in (("options", options_table()), ("metrics", metrics_table())):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text, flags=re.S)
        assert count == 1, f"{OUTPUT} has no place for the {name}"
    return text


if __name__ == "__main__":
    OUTPUT.write_text(written(OUTPUT.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{OUTPUT} written", file=sys.stderr)
