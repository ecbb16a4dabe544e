"""Tables of the router's last full benchmark, from benches/results/router.json.

    python benches/router_report.py

Writes benches/results/router.md and the parts of docs/router-bench.md and README.md between the lines
``<!-- router: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import RESULTS
from router_cases import Row, show_value, table
from router_ways import OURS, PEER_NAMES

ROOT = Path(__file__).resolve().parent.parent
# The lines of the README's table: a measured row, its name there, and which value of the peers is the best.
SHORT: dict[str, tuple[str, Callable[..., str]]] = {
    "32 clients: requests/s, share of direct": ("32 clients: share of the direct path's requests/s", max),
    "32 streams: requests/s, share of direct": ("32 streams: the same", max),
    "32 clients: CPU s per 1,000": ("32 clients: CPU seconds for 1,000 requests", min),
    "memory when idle": ("memory when idle", min),
}
PEER_VERSIONS = Path(__file__).with_name("router_peers.txt")


def tables(measured: dict[str, Any]) -> str:
    """Everything that was measured, in Markdown."""
    parts = [speed(measured)] if measured["speed"]["rows"] else []
    parts += [real(measured)] if measured["real"]["rows"] else []
    parts += [hits(measured)] if measured["hits"]["rows"] else []
    return "\n\n".join([*parts, notes(measured)]) + "\n"


def _rows(part: dict[str, Any]) -> list[Row]:
    return [Row(**{key: value for key, value in row.items() if key != "reached"}) for row in part["rows"]]


def speed(measured: dict[str, Any]) -> str:
    return table(_rows(measured["speed"]), measured["speed"]["ways"])


def real(measured: dict[str, Any]) -> str:
    return table(_rows(measured["real"]), measured["real"]["ways"])


def hits(measured: dict[str, Any]) -> str:
    return table(_rows(measured["hits"]), measured["hits"]["ways"])


def notes(measured: dict[str, Any]) -> str:
    began, ended = measured["began"], measured["ended"]
    lines = [
        f"{began['when']} to {ended['when'][11:]}, load average {began['load'][0]} to {ended['load'][0]}, "
        f"{began['cpus']} CPUs ({began['machine']})."
    ]
    for case, failed in measured["failures"].items():
        lines += [f"- {case}: {name} has no figure: {why}" for name, why in failed.items()]
    return "\n".join(lines)


def summary(measured: dict[str, Any]) -> str:
    """A line for each of ``SHORT``: a bare pass-through, the best peer by name, and ours."""
    rows = {row.case: row for row in _rows(measured["speed"])}
    versions = dict(line.split("==") for line in PEER_VERSIONS.read_text().split())
    lines = [["", "a bare TCP pass-through", "the best peer", "sglang_omni"], ["---"] * 4]
    for case, (what, best) in SHORT.items():
        values, unit = rows[case].values, rows[case].unit
        peer = best((name for name in PEER_NAMES if values.get(name) is not None), key=values.__getitem__)
        shown = {way: show_value(values[way], unit) for way in ("pass", peer, OURS)}
        lines.append([what, shown["pass"], f"{shown[peer]} ({peer} {versions[peer]})", f"**{shown[OURS]}**"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PARTS = {"speed": speed, "real": real, "hits": hits, "notes": notes, "summary": summary}


def main() -> None:
    measured = json.loads((RESULTS / "router.json").read_text())
    (RESULTS / "router.md").write_text(tables(measured))

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}\n{PARTS[found[2]](measured)}\n{found[3]}"

    for path in (ROOT / "docs/router-bench.md", ROOT / "README.md"):
        pattern = r"(<!-- router: (\w+) -->)\n.*?(<!-- end -->)"
        path.write_text(re.sub(pattern, fill, path.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
