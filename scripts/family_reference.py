"""Write the table of families in docs/models.md, from ``sglang_omni.families``.

Run it after a change there; a test compares its output with the committed file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sglang_omni.families import FAMILIES, Family

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "models.md"
_BEGIN = "<!-- families: written by scripts/family_reference.py -->\n"
_END = "<!-- end of families -->\n"


def text() -> str:
    """The page, with the table of today."""
    before, _, rest = OUTPUT.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n\n{_END}{after}"


def table() -> str:
    """A line for each family."""
    heads = "family, checkpoints, in, out, tasks, engines, compared with: what is equal, random checkpoints"
    head = f"| {heads.replace(', ', ' | ')} |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(_row, FAMILIES)])


def _row(family: Family) -> str:
    cells = (
        f"`{family.name}`",
        ", ".join(f"`{name}`" for name in family.checkpoints),
        ", ".join(family.takes),
        ", ".join(family.gives),
        ", ".join(family.tasks),
        ", ".join(f"`{engine}`" for engine in family.engines),
        family.proved_against,
        "yes" if family.maker else "",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    OUTPUT.write_text(text(), encoding="utf-8")
    print(f"{OUTPUT} written", file=sys.stderr)
