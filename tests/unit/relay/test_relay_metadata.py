"""Whatever a peer announces is refused or lies within what it announced: nothing else is ever read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.relay import RelayReadError
from sglang_omni.relay.nccl import relay as nccl
from sglang_omni.relay.one_sided.relay import OneSidedRelay
from sglang_omni.relay.one_sided.slots import HEADER_BYTES, SLOT_BYTES, slots_for

_numbers = st.integers(-(1 << 70), 1 << 70) | st.sampled_from(
    [-1, 0, 1, 2, 63, 64, 65, SLOT_BYTES - 64, SLOT_BYTES, SLOT_BYTES + 1, (1 << 63) - 1, 1 << 63, 1 << 64]
)
_leaves = st.none() | st.booleans() | _numbers | st.floats() | st.text(max_size=9) | st.binary(max_size=20)
_anything = st.recursive(
    _leaves,
    lambda some: st.lists(some, max_size=5) | st.dictionaries(st.text(max_size=9), some),
    max_leaves=9,
)


@st.composite
def _changed(draw: st.DrawFn, true: dict[str, Any]) -> dict[str, Any]:
    """A true announcement of which one or two parts are another number, anything at all, or missing."""
    lie = dict(true)
    for name in draw(st.lists(st.sampled_from(sorted(true)), min_size=1, max_size=2)):
        if isinstance(true[name], list) and draw(st.integers(0, 3)):
            place = draw(st.integers(0, len(true[name]) - 1))
            lie[name] = [*true[name][:place], draw(_numbers), *true[name][place + 1 :]]
        elif draw(st.integers(0, 9)):
            lie[name] = draw(_numbers | _anything)
        else:
            lie.pop(name, None)
    return lie


_IN_SLOTS = {
    "engine": "fake",
    "peer": {"name": "peer"},
    "segment": [1 << 40, SLOT_BYTES, 64],
    "slots": [3, 2],
    "nbytes": 100_000,
    "generation": 5,
    "checksum": (1 << 64) - 1,
    "ticket": 7,
}
_BY_TICKET = {
    "engine": "nccl",
    "address": ["127.0.0.1", 4000],
    "token": bytes(16),
    "nbytes": 100_000,
    "ticket": 7,
}


class _Parser(OneSidedRelay):
    def __init__(self) -> None:
        self.kind = "fake"

    def _make_engine(self) -> Any:
        raise NotImplementedError


def test_what_is_true_is_taken() -> None:
    assert _Parser()._parse(_IN_SLOTS).start == (1 << 40) + 3 * SLOT_BYTES
    assert nccl._parse(_BY_TICKET).nbytes == 100_000


@settings(max_examples=250)
@given(_changed(_IN_SLOTS) | st.dictionaries(st.text(), _anything))
def test_a_place_is_within_the_segment_that_was_announced(metadata: dict[str, Any]) -> None:
    try:
        source = _Parser()._parse(metadata)
    except RelayReadError:
        return
    address, slot_bytes, slots = source.segment
    end = source.start + source.slots[1] * slot_bytes
    assert 0 <= address <= source.start < end <= address + slots * slot_bytes < 1 << 63
    assert 0 <= source.nbytes <= end - source.start - HEADER_BYTES
    assert source.slots[1] == slots_for(source.nbytes)
    # What the engines write into 64 bits.
    assert 0 <= source.generation < 1 << 63
    assert 0 <= source.ticket < 1 << 63
    assert source.checksum is None or 0 <= source.checksum < 1 << 64


@pytest.mark.parametrize("checksum", [-1, 1 << 64, 0.5, "5", b"5", [5]])
def test_a_checksum_is_64_bits_or_said_to_be_none(checksum: Any) -> None:
    with pytest.raises(RelayReadError, match="not the metadata of a fake put"):
        _Parser()._parse({**_IN_SLOTS, "checksum": checksum})
    assert _Parser()._parse({**_IN_SLOTS, "checksum": None}).checksum is None
    without = {name: value for name, value in _IN_SLOTS.items() if name != "checksum"}
    with pytest.raises(RelayReadError, match="not the metadata of a fake put"):
        _Parser()._parse(without)


@settings(max_examples=100)
@given(_changed(_BY_TICKET) | st.dictionaries(st.text(), _anything))
def test_a_ticket_is_asked_for_at_an_address_in_numbers_that_fit(metadata: dict[str, Any]) -> None:
    try:
        offer = nccl._parse(metadata)
    except RelayReadError:
        return
    host, port, token = offer.sender
    assert isinstance(host, str)
    assert 0 < port < 1 << 16
    assert len(token) == 16
    assert 0 <= offer.nbytes < 1 << 63
    assert 0 <= offer.ticket < 1 << 63
