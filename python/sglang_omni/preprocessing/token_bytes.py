"""The bytes that a tokenizer's tokens stand for, one by one."""

from __future__ import annotations

import re
from functools import cache

from tokenizers import Tokenizer

_NEVER = re.compile(rb"[\xc0\xc1\xf5-\xff]")


class TokenBytes:
    """A token's bytes, which need not be whole characters.

    Tokenizers write bytes in one of three ways: as characters of an alphabet of 256 (byte-level BPE, as in
    GPT-2, Qwen and Llama 3), as ``<0x0A>`` and ``▁`` for a space (SentencePiece, as in Llama 2), or plainly.

    Attributes:
        control: Tokens that no text has, such as the ends of turns.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token: each.content.encode() for token, each in added.items()}
        self.control = frozenset(token for token, each in added.items() if each.special)
        self._has_alphabet = tokenizer.token_to_id("Ġ") is not None
        self._has_fallback = tokenizer.token_to_id("<0x0A>") is not None
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        """Nothing for an id that the tokenizer does not have: models' vocabularies are often larger."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._decode(token)
        return found

    def spoken(self, size: int) -> list[bytes]:
        """Of all tokens below ``size``; nothing for control tokens, and for bytes that no UTF-8 text has."""
        known = (b"" if token in self.control else self._decode(token) for token in range(size))
        return [b"" if _NEVER.search(each) else each for each in known]

    def _decode(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token]
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self._has_fallback:
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes([int(text[3:5], 16)])
            return text.replace("▁", " ").encode()
        if self._has_alphabet and all(character in _alphabet() for character in text):
            return bytes(_alphabet()[character] for character in text)
        return text.encode()


@cache
def _alphabet() -> dict[str, int]:
    """The characters of byte-level BPE: a visible one for each byte, as GPT-2's encoder defined them."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }
