"""Messages between a host and the coordinator: accepted ones and refused ones."""

from __future__ import annotations

import json

import pytest

from sglang_omni.pipeline.processes.hosts.messages import (
    GoodbyeMessage,
    JoinMessage,
    Launch,
    ProcessReport,
    ReportMessage,
    WantedMessage,
    WelcomeMessage,
    encode,
    parse_from_coordinator,
    parse_from_host,
)

WELCOME = WelcomeMessage(
    config={"stages": [{"name": "a"}]}, run_key="s3cret", endpoints={"abort": "tcp://a:1"}, host_timeout=4.0
)


@pytest.mark.parametrize(
    ("message", "parse"),
    [
        (JoinMessage(name="b", version="1", address="10.0.0.2"), parse_from_host),
        (ReportMessage(processes=[ProcessReport(launch=1, name="p", pid=3, status=-9)]), parse_from_host),
        (WELCOME, parse_from_coordinator),
        (WantedMessage(launches=[Launch(number=1, processes=["p"], killed=["p"])]), parse_from_coordinator),
        (GoodbyeMessage(reason="it is over"), parse_from_coordinator),
    ],
)
def test_they_arrive_as_they_were_sent(message, parse) -> None:
    assert parse(encode(message)) == message


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"", "EOF"),
        (b"\xff\x00", "expected"),
        (b"[]", "object"),
        (b"{}", "type"),
        (b'{"type": "welcome"}', "welcome"),
        (b'{"type": "leave"}', "reason"),
        (b'{"type": "leave", "reason": 3}', "reason"),
        (b'{"type": "report", "processes": [{"launch": "1", "name": "p", "pid": 1}]}', "launch"),
        (b'{"type": "report", "processes": [], "more": 1}', "more"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_anything_else_is_refused_in_words(frame: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){problem}"):
        parse_from_host(frame)


def test_a_host_of_another_version_can_still_say_which() -> None:
    frame = json.dumps({"type": "join", "name": "b", "version": "99", "address": "x", "gpus": 8}).encode()
    assert parse_from_host(frame) == JoinMessage(name="b", version="99", address="x")


def test_no_error_tells_the_key() -> None:
    wire = json.loads(encode(WELCOME)) | {"host_timeout": -1}
    with pytest.raises(ValueError, match="host_timeout") as error:
        parse_from_coordinator(json.dumps(wire).encode())
    assert "s3cret" not in str(error.value) + repr(WELCOME)
