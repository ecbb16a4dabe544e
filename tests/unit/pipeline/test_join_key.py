"""The file of the key that hosts join with."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest

from sglang_omni.pipeline.processes.hosts.join_key import read_join_key, read_or_create_join_key


def test_it_is_written_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "join.key"
    key = read_or_create_join_key(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_or_create_join_key(file) == read_join_key(file) == key
    assert key.secret not in repr(key)


def test_without_room_for_it_none_is_left(tmp_path: Path) -> None:
    """A part of one would be refused at each later start."""
    file = tmp_path / "join.key"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            read_or_create_join_key(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_or_create_join_key(file) == read_join_key(file)


@pytest.mark.parametrize("text", [b"", b"secret", b"x" * 41, b"\xff" * 40, b'"' * 40])
def test_a_file_with_something_else_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "join.key"
    file.write_bytes(text)
    for read in (read_join_key, read_or_create_join_key):
        with pytest.raises(ValueError, match=r"join\.key: not a join key"):
            read(file)
    assert file.read_bytes() == text


def test_a_missing_file_says_where_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="copy there the coordinator's key file"):
        read_join_key(tmp_path / "join.key")


def test_a_file_that_others_can_read_is_complained_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "join.key"
    read_or_create_join_key(file)
    file.chmod(0o640)
    with caplog.at_level(logging.WARNING):
        read_join_key(file)
    assert "chmod 600" in caplog.text
