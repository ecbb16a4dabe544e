"""Any bytes at a pipeline's sockets: messages, or the error that the parser documents, in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.pipeline.processes.hosts.messages import parse_from_coordinator, parse_from_host
from sglang_omni.pipeline.transport.ipc.zmtp import (
    COMMAND,
    GREETING,
    LONG,
    MAX_FRAME,
    MORE,
    Parser,
    ZmtpError,
    frame_header,
    opening,
)

# What the objects of an input's frames and errors take beside its bytes.
ROOM = 64 << 10

frames = st.builds(
    lambda flags, body: frame_header(len(body), flags) + body,
    st.integers(0, MORE | LONG | COMMAND),
    st.binary(max_size=300) | st.binary(max_size=40).map(b"\x05READY".__add__),
)
long_headers = st.integers(0, 2 * MAX_FRAME).map(lambda size: bytes((LONG,)) + size.to_bytes(8, "big"))
streams = st.lists(
    st.sampled_from([GREETING, opening("PUSH"), opening("SUB")])
    | frames
    | long_headers
    | st.binary(max_size=99),
    max_size=8,
).map(b"".join)


def parsed(stream: bytes, size: int) -> tuple[list[bytes], str | None]:
    """The messages in a stream that comes in pieces of ``size`` bytes, and the error that ended it."""
    parser, messages = Parser("PULL"), []
    try:
        for start in range(0, len(stream), size):
            parser.feed(stream[start : start + size])
            while (message := parser.next_message()) is not None:
                messages.append(message)
    except ZmtpError as error:
        return messages, str(error)
    return messages, None


@given(stream=streams, size=st.integers(1, 500))
@settings(max_examples=300, deadline=None)
def test_zmtp_ends_in_messages_or_its_error(stream: bytes, size: int) -> None:
    stream = stream if size % 3 else opening("PUSH") + stream
    tracemalloc.start()
    try:
        messages, error = parsed(stream, size)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, messages)) <= len(stream)
    assert peak < 8 * len(stream) + ROOM
    # The same in one piece. The errors' texts may differ in how much of a greeting they quote.
    whole, error_of_whole = parsed(stream, len(stream) or 1)
    assert (messages, error is None) == (whole, error_of_whole is None)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TYPES = ["join", "report", "leave", "welcome", "wanted", "refused", "goodbye"]
FIELDS = [
    *("name", "version", "address", "processes", "reason"),
    *("config", "run_key", "endpoints", "host_timeout", "launches", "paths"),
]
messages = st.builds(
    lambda type, fields: json.dumps({"type": type, **fields}).encode(),
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), values, max_size=6),
)


@pytest.mark.parametrize("parse", [parse_from_host, parse_from_coordinator])
@given(frame=messages | st.binary(max_size=400) | st.integers(0, 5000).map(lambda depth: b"[" * depth))
@settings(max_examples=300, deadline=None)
def test_a_hosts_message_is_one_or_a_value_error(parse: Callable[[bytes], object], frame: bytes) -> None:
    found: object
    try:
        found = parse(frame)
    except ValueError as error:
        found = error
    if isinstance(found, ValueError):
        # Not pydantic's own, which quotes the input.
        assert type(found) is ValueError
        assert len(str(found)) < 1000
    else:
        assert json.loads(frame)["type"] == found.type
