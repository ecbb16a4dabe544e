"""The letters by which vocabularies of bytes are written."""

from __future__ import annotations


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte from 0 to 255 (GPT-2's ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]
