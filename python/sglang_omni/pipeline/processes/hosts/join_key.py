"""The secret that a coordinator and its hosts share. A host that has it may join."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sglang_omni.pipeline.transport.keys import RunKeys

logger = logging.getLogger(__name__)


def default_key_file() -> Path:
    """``sglang_omni/join.key`` in the user's settings folder."""
    root = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(root).expanduser() / "sglang_omni" / "join.key"


def read_join_key(path: Path) -> RunKeys:
    """The key in a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds no key.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: no such file; copy there the coordinator's key file, which it writes when it starts"
        ) from None
    if path.stat().st_mode & 0o077:
        logger.warning("%s can be read by others, who can then join: chmod 600 %s", path, path)
    try:
        return RunKeys.from_secret(text.decode().strip())
    except ValueError as exc:
        raise ValueError(f"{path}: not a join key: {exc}") from exc


def read_or_create_join_key(path: Path) -> RunKeys:
    """The key in a file. If there is no file, it is written, readable by its owner alone, with a new key.

    Raises:
        OSError: It can neither be read nor written.
        ValueError: It holds no key.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read_join_key(path)
    key = RunKeys.generate()
    try:
        with os.fdopen(fd, "w") as file:
            file.write(f"{key.secret}\n")
    except OSError:
        # A part of a key would be refused at each later start.
        path.unlink()
        raise
    return key
