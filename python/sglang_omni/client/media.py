"""What an encoded file is, by its first bytes."""

from __future__ import annotations

from typing import NamedTuple


class MediaKind(NamedTuple):
    """
    Attributes:
        mime_type: As ``audio/wav``.
        ending: Of the file's name, as ``wav``.
    """

    mime_type: str
    ending: str

    @property
    def kind(self) -> str:
        """``audio``, ``image`` or ``video``."""
        return self.mime_type.partition("/")[0]


# Where a mark stands, and what begins so. The more precise marks come first.
_MARKS = (
    (8, b"WAVE", MediaKind("audio/wav", "wav")),
    (8, b"WEBP", MediaKind("image/webp", "webp")),
    (8, b"AVI ", MediaKind("video/x-msvideo", "avi")),
    (0, b"ID3", MediaKind("audio/mpeg", "mp3")),
    (0, b"\xff\xfb", MediaKind("audio/mpeg", "mp3")),
    (0, b"\xff\xf3", MediaKind("audio/mpeg", "mp3")),
    (0, b"\xff\xf2", MediaKind("audio/mpeg", "mp3")),
    (0, b"\xff\xf1", MediaKind("audio/aac", "aac")),
    (0, b"\xff\xf9", MediaKind("audio/aac", "aac")),
    (0, b"fLaC", MediaKind("audio/flac", "flac")),
    (0, b"OggS", MediaKind("audio/ogg", "ogg")),
    (4, b"ftypM4A", MediaKind("audio/mp4", "m4a")),
    (4, b"ftyp", MediaKind("video/mp4", "mp4")),
    (0, b"\x1a\x45\xdf\xa3", MediaKind("video/webm", "webm")),
    (0, b"\x89PNG", MediaKind("image/png", "png")),
    (0, b"\xff\xd8\xff", MediaKind("image/jpeg", "jpeg")),
    (0, b"GIF8", MediaKind("image/gif", "gif")),
    (0, b"BM", MediaKind("image/bmp", "bmp")),
)


def media_kind(data: bytes) -> MediaKind | None:
    """What a file is; None if it is of no kind known here."""
    return next((kind for at, mark, kind in _MARKS if data.startswith(mark, at)), None)
