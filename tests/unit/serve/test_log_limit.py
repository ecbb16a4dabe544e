"""A log that clients cannot fill."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from virtual_time import VirtualClock

from sglang_omni.serve.launch import log_limit


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(log_limit.LogLimit())
    logger = logging.getLogger("test_log_limit")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger, out
    logger.removeHandler(handler)


def test_lines_of_one_place_are_limited_and_counted(
    log: tuple[logging.Logger, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, out = log
    clock = VirtualClock()
    monkeypatch.setattr(log_limit, "time", SimpleNamespace(monotonic=clock))

    def refuse(name: str) -> None:
        logger.info("Request %s was answered with %d", name, 400)

    for number in range(5000):
        refuse(str(number))
    assert len(out.getvalue().splitlines()) == 100
    logger.info("another")
    assert out.getvalue().endswith("another\n")
    clock.sleep(0.15)
    refuse("last")
    refuse("too soon")
    (last,) = out.getvalue().splitlines()[101:]
    assert last == "Request last was answered with 400 (4900 lines like this one were left out)"


def test_debugging_is_not_limited(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    for _ in range(500):
        logger.debug("%s", "a")
    assert out.getvalue() == "a\n" * 500


def test_one_line_is_not_endless(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    logger.warning("%s", "a" * 100_000)
    assert len(out.getvalue()) == 4001
