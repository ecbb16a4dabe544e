"""The ids that stages know requests by: no client can choose another request's, and none is used twice."""

from __future__ import annotations

import re
from urllib.parse import quote

# Printable ASCII without "~", which numbered ids contain, and ":", which a relay's keys contain.
_PLAIN = re.compile(r"[ -9;-}]{1,256}")
# Used ids that are remembered. After that many, any id may have been used, so every one is numbered.
_REMEMBERED = 20_000
_LONGEST = 256
# Without ":", so that no id's keys can begin as another's.
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace(":", "")


class WireIds:
    """Gives each request a wire id: the client's id if it is plain and new, else that id and a unique number.

    So a late message of an earlier request cannot be taken for a later one's, and no client's id equals
    another request's wire id. Either way the logs of stages contain the client's id.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._number = 0

    def new(self, request_id: str) -> str:
        """1 to 300 printable ASCII characters but ":", whatever ``request_id`` contains."""
        if (
            len(self._used) < _REMEMBERED
            and request_id not in self._used
            and _PLAIN.fullmatch(request_id) is not None
        ):
            self._used.add(request_id)
            return request_id
        self._number += 1
        shown = request_id[:_LONGEST]
        shown = quote(shown, safe=_PRINTABLE, errors="surrogatepass")[:_LONGEST]
        return f"{shown}~{self._number}"
