"""Write the tables in docs/models.md: of families, and of what `sgl-omni check` says of published ids.

Run it after a change there; a test compares its output with the committed file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from published_table import tables

from sglang_omni.families import FAMILIES, Family

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "models.md"


def text() -> str:
    """The page, with the tables of today."""
    page = OUTPUT.read_text(encoding="utf-8")
    for name, table in (("families", families()), ("published ids", tables())):
        begin = f"<!-- {name}: written by scripts/family_reference.py -->\n"
        end = f"<!-- end of {name} -->\n"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{table}\n\n{end}{after}"
    return page


def families() -> str:
    """A line for each family."""
    heads = "family, checkpoints, in, out, tasks, engines, compared with: what is equal, random checkpoints"
    head = f"| {heads.replace(', ', ' | ')} |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(_row, FAMILIES)])


def _row(family: Family) -> str:
    cells = (
        f"`{family.name}`",
        ", ".join(f"`{name}`" for name in family.checkpoints or family.marks),
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
