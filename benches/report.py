"""One Markdown table of what the benchmarks have measured: printed, and written to benches/results/table.md.

python benches/report.py
"""

from __future__ import annotations

import json
from typing import Any

from measure import RESULTS, Result, table

PARTS = {
    "data_plane": "Data plane",
    "pipeline": "Pipeline",
    "stalled": "Stalled edge",
    "replicas": "Replicas",
}


def main() -> None:
    rows: list[list[str]] = []
    notes: list[str] = []
    for name, title in PARTS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        measured: dict[str, Any] = json.loads(path.read_text())
        for case in measured["cases"]:
            del case["reached"]
            rows.append(Result(**case).row())
        began, ended = measured["began"], measured["ended"]
        notes.append(
            f"{title}: {began['when']} to {ended['when'][11:]}, load average {began['load'][0]} to "
            f"{ended['load'][0]}, {began['cpus']} CPUs ({began['machine']}), Python {began['python']}."
        )
    text = "\n".join([table(rows), "", *notes]) + "\n"
    (RESULTS / "table.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
