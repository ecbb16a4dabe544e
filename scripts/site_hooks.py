"""What `mkdocs build` does to the pages of docs/ beside what its configuration says."""

from __future__ import annotations

import re
from typing import Any

# A link to a file of the repository outside of docs/, which the site does not have: its text stays.
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of a page, without links that lead out of the site."""
    return _OUTSIDE.sub(r"\1", markdown) if "/" not in page.file.src_uri else markdown
