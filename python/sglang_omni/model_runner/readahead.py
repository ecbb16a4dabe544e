"""Reads a checkpoint's files ahead of its loading.

Weights are read through a mapping, tensor by tensor. With a cold page cache each piece of it is a page fault
that waits for the disk; a thread that asks for the file in order keeps the disk busy instead.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Collection
from pathlib import Path

logger = logging.getLogger(__name__)

# Less is read as fast without.
_LEAST_BYTES = 64 << 20
# Asked for at once. The kernel cuts it into requests, and waits if too many are under way.
_PIECE_BYTES = 8 << 20


def read_ahead(path: Path, names: Collection[str]) -> None:
    """Has a thread bring these tensors of a safetensors file into the page cache. Returns at once.

    What is there already costs nothing. If the system cannot do it, a line in the log says so.
    """
    threading.Thread(
        target=_read_ahead, args=(path, names), name=f"readahead-{path.name}", daemon=True
    ).start()


def _read_ahead(path: Path, names: Collection[str]) -> None:
    try:
        with path.open("rb") as file:
            start, stop = _span(file.fileno(), names)
            if stop - start < _LEAST_BYTES:
                return
            for at in range(start, stop, _PIECE_BYTES):
                os.posix_fadvise(file.fileno(), at, min(_PIECE_BYTES, stop - at), os.POSIX_FADV_WILLNEED)
    except (OSError, AttributeError) as error:
        logger.warning("%s is not read ahead, so that loading may take longer: %s", path, error)


def _span(file: int, names: Collection[str]) -> tuple[int, int]:
    """Where the tensors begin and end in the file, from its header (huggingface/safetensors, "Format")."""
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    header = json.loads(os.pread(file, length, 8))
    offsets = [header[name]["data_offsets"] for name in names if name in header]
    if not offsets:
        return 0, 0
    data = 8 + length
    return data + min(start for start, _ in offsets), data + max(stop for _, stop in offsets)
