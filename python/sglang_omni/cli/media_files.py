"""Pictures, sound and video from files, as the commands send them."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.cli.connection import CommandError

if TYPE_CHECKING:
    from sglang_omni.client.media import MediaKind

_NOUNS = {"audio": "sound", "image": "picture", "video": "video"}
# Containers of either.
_EITHER = {"mp4", "webm", "ogg"}


def read_media(name: str, kind: str) -> bytes:
    """The content of a file of this kind; ``-`` is standard input.

    Args:
        kind: ``audio``, ``image`` or ``video``.

    Raises:
        CommandError: It cannot be read, or is of another kind.
    """
    data = sys.stdin.buffer.read() if name == "-" else _read(Path(name))
    shown = "standard input" if name == "-" else name
    noun = _NOUNS[kind]
    if not data:
        raise CommandError(f"{shown}: the file is empty; a {noun} file is needed")
    found = _kind(data)
    if found is None and _is_text(data):
        raise CommandError(f"{shown}: this is a text file; a {noun} file is needed")
    if found is not None and found.kind != kind and found.ending not in _EITHER:
        raise CommandError(
            f"{shown}: this is a {_NOUNS[found.kind]} ({found.ending}); a {noun} file is needed"
        )
    return data


def content_part(name: str, kind: str) -> dict[str, Any]:
    """A file as a part of a message's content, in OpenAI's form.

    Raises:
        CommandError: As of ``read_media``.
    """
    data = read_media(name, kind)
    found = _kind(data)
    encoded = base64.b64encode(data).decode("ascii")
    if kind == "audio":
        sound = {"data": encoded, "format": found.ending if found else Path(name).suffix.lstrip(".") or "wav"}
        return {"type": "input_audio", "input_audio": sound}
    mime_type = found.mime_type if found else f"{kind}/*"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{mime_type};base64,{encoded}"}}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CommandError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise CommandError(f"{path}: this is a directory; name a file in it") from None
    except OSError as exc:
        raise CommandError(f"{path}: cannot be read: {exc.strerror}") from None


def _kind(data: bytes) -> MediaKind | None:
    from sglang_omni.client.media import media_kind

    return media_kind(data)


def _is_text(data: bytes) -> bool:
    start = data[:512]
    return b"\0" not in start and start.isascii() and all(byte >= 32 or byte in b"\t\n\r\f" for byte in start)
