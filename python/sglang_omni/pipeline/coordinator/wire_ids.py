"""What stages know requests by: names that no client can choose, each used once."""

from __future__ import annotations

import re
from urllib.parse import quote

# Printable ASCII without "~", which numbered ones have, and ":", which keys in a relay have.
_PLAIN = re.compile(r"[ -9;-}]{1,256}")
# How many ids are known to have been used. Each one after that may have been, and is numbered.
_REMEMBERED = 20_000
_LONGEST = 256
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))


class WireIds:
    """Gives each request a wire id: its own id if that is plain and was never used before, else the id with
    a number behind it that no other request has.

    What is late of an earlier request can so be taken for nothing of a later one, and no id of a client's is
    another request's wire id. Lines of stages hold the client's id either way.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._number = 0

    def new(self, request_id: str) -> str:
        """1 to 300 printable ASCII characters, whatever the id holds."""
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
