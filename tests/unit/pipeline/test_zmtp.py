"""The ZMTP parser, with bytes that come in any pieces, well-formed or not."""

from __future__ import annotations

import tracemalloc

import pytest

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


def frame(body: bytes, flags: int = 0) -> bytes:
    return frame_header(len(body), flags) + body


def take(parser: Parser, data: bytes) -> list[bytes]:
    parser.feed(data)
    messages = []
    while (message := parser.next_message()) is not None:
        messages.append(message)
    return messages


def opened() -> Parser:
    parser = Parser("PULL")
    assert take(parser, opening("PUSH")) == []
    assert parser.ready
    return parser


MESSAGES = [b"", b"a", b"b" * 255, b"c" * 256, bytes(range(256)) * 2, b"end"]
STREAM = opening("PUSH") + b"".join(map(frame, MESSAGES))


def test_the_two_lengths_of_a_frame() -> None:
    assert frame_header(255) == b"\x00\xff"
    assert frame_header(256) == b"\x02" + (256).to_bytes(8, "big")
    assert frame_header(1 << 40, MORE) == b"\x03" + (1 << 40).to_bytes(8, "big")


def test_a_stream_cut_in_two_at_every_byte() -> None:
    for cut in range(len(STREAM) + 1):
        parser = Parser("PULL")
        assert take(parser, STREAM[:cut]) + take(parser, STREAM[cut:]) == MESSAGES, cut


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100])
def test_a_stream_in_pieces_of_one_size(size: int) -> None:
    parser = Parser("PULL")
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [message for piece in pieces for message in take(parser, piece)] == MESSAGES


def test_a_short_body_may_have_a_long_length() -> None:
    data = bytes((LONG,)) + (3).to_bytes(8, "big") + b"abc"
    assert take(opened(), data + frame(b"next")) == [b"abc", b"next"]


def test_bytes_beyond_a_large_frame_belong_to_the_next() -> None:
    parser = opened()
    data = frame(b"x" * 1000) + frame(b"y") + frame(b"z" * 300)
    assert take(parser, data[:500]) == []
    assert parser.missing == 1009 - 500
    assert take(parser, data[500:-1]) == [b"x" * 1000, b"y"]
    assert take(parser, data[-1:]) == [b"z" * 300]


def test_commands_after_the_handshake_are_skipped() -> None:
    ping = frame(b"\x04PING\x00\x00", COMMAND)
    assert take(opened(), ping + frame(b"a") + ping) == [b"a"]


def test_a_message_of_several_parts_is_dropped_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    data = frame(b"1", MORE) + frame(b"2", MORE) + frame(b"3") + frame(b"a") + frame(b"4", MORE) + frame(b"5")
    assert take(opened(), data + frame(b"b")) == [b"a", b"b"]
    assert len(caplog.records) == 2


READY = opening("PUSH")[len(GREETING) :]
WRONG = {
    "another protocol": (b"GET / HTTP/1.1\r\n", "does not speak ZMTP"),
    "another protocol that begins alike": (b"\xff" * 16, "does not speak ZMTP|speaks ZMTP"),
    "an older version": (GREETING[:10] + b"\x01", "ZMTP 1"),
    "another mechanism": (GREETING.replace(b"NULL", b"CURV"), "security mechanism"),
    "a socket of the wrong type": (opening("PULL"), "a peer of type b'PULL' at a PULL socket"),
    "no socket type": (GREETING + frame(b"\x05READY", COMMAND), "type None"),
    "a refusal": (GREETING + frame(b"\x05ERROR\x03bad", COMMAND), "refused the connection: b'bad'"),
    "another command": (GREETING + frame(b"\x05HELLO", COMMAND), "where READY was due"),
    "a property that is cut off": (GREETING + frame(READY[2:-2], COMMAND), "cut off"),
    "a message too early": (GREETING + frame(b"hello"), "before the READY"),
    "unknown flags": (opening("PUSH") + frame(b"x", 8), "unknown flags 0x08"),
    "a frame too long": (opening("PUSH") + frame_header(MAX_FRAME + 1), "more than"),
}


@pytest.mark.parametrize(("data", "says"), WRONG.values(), ids=WRONG)
def test_breaking_the_protocol_is_an_error(data: bytes, says: str) -> None:
    with pytest.raises(ZmtpError, match=says):
        take(Parser("PULL"), data)


def test_no_memory_is_taken_for_bytes_that_have_not_come() -> None:
    parser = opened()
    tracemalloc.start()
    try:
        assert take(parser, frame_header(MAX_FRAME) + b"x" * 100) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parser.missing == MAX_FRAME - 100
    assert peak < 100_000
