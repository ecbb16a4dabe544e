"""One payload for several targets: packed and copied once, and each target on its own afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from relay_stand_ins import MIB, PlainRelay, block
from stage_harness import harness
from waiting import rounds, until

from sglang_omni.compat.plain_relay import as_relay
from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.relay.shm.relay import ShmRelay


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender", slot_size_mb=1, credits=2)
    yield relay
    relay.close()


def held(relay: ShmRelay) -> dict[str, int]:
    return {edge: stats["held"] for edge, stats in relay.stats().items()}


async def test_it_is_copied_once_and_each_target_has_a_credit_of_its_own(relay: ShmRelay) -> None:
    sent = FanOut(relay, {"t": block(0.5, 3)})
    written = {target: await sent.write("r", target) for target in "abc"}
    assert 0.5 * MIB < relay.arena.written() < 0.6 * MIB
    del sent
    assert len({tuple(metadata["relay_info"]["place"][:3]) for metadata, _ in written.values()}) == 1
    views = {
        target: await relay_io.read_blob(relay, "r", metadata) for target, (metadata, _) in written.items()
    }
    assert all(view["t"][-1] == 3 for view in views.values())
    for left in (2, 1, 0):
        views.popitem()
        assert relay.arena.outstanding() == left
    assert set(held(relay).values()) == {0}


async def test_a_target_without_credit_holds_up_only_itself(relay: ShmRelay) -> None:
    before, _ = await relay_io.write_blob(relay, "before", block(1.5), target="stalled")
    start = relay.arena.written()
    sent = FanOut(relay, block(1.2, 5))
    waiting = asyncio.create_task(sent.write("r", "stalled"))
    await rounds()
    for target in ("a", "b"):
        metadata, _ = await sent.write("r", target)
        assert (await relay_io.read_blob(relay, "r", metadata))[0] == 5
    del sent
    assert not waiting.done()
    # Nobody reads it any more, and yet it is there for the one that comes late.
    await relay_io.read_blob(relay, "before", before)
    metadata, _ = await asyncio.wait_for(waiting, 60)
    del waiting
    assert (await relay_io.read_blob(relay, "r", metadata))[-1] == 5
    assert relay.arena.written() - start < 1.3 * MIB
    assert set(held(relay).values()) == {0}


async def test_targets_that_begin_while_it_is_copied_wait_for_that_copy() -> None:
    relay = ShmRelay("sender", slot_size_mb=64)
    sent = FanOut(relay, block(40, 7))  # large enough to be copied in a thread
    written = await asyncio.gather(*(sent.write("r", target) for target in "abc"))
    assert relay.arena.written() < 41 * MIB
    for metadata, _ in written:
        assert (await relay_io.read_blob(relay, "r", metadata))[-1] == 7
    relay.close()


async def test_what_is_taken_back_of_one_target_is_there_for_the_others(relay: ShmRelay) -> None:
    sent = FanOut(relay, block(0.5, 4))
    first, _ = await sent.write("first", "a")
    second, _ = await sent.write("second", "b")
    del sent
    relay.cleanup("first")
    await relay_io.write_blob(relay, "next", block(0.5, 9), target="a")
    assert (await relay_io.read_blob(relay, "second", second))[0] == 4
    with pytest.raises(RuntimeError, match="stale"):
        await relay_io.read_blob(relay, "first", first)


async def test_beyond_what_may_wait_for_slow_targets_each_gets_its_own(relay: ShmRelay) -> None:
    slow = [FanOut(relay, block(0.9, value)) for value in (1, 2, 3)]
    for sent in slow:
        metadata, _ = await sent.write("r", "quick")
        assert (await relay_io.read_blob(relay, "r", metadata)).numel()
    start = relay.arena.written()
    late = [(await relay_io.read_blob(relay, "r", (await s.write("r", "slow"))[0]))[0] for s in slow]
    assert late == [1, 2, 3]
    # Two were kept for it, the third was written again.
    assert 0.9 * MIB < relay.arena.written() - start < MIB


async def test_a_small_one_is_packed_once(relay: ShmRelay) -> None:
    sent = FanOut(relay, {"x": torch.arange(5)})
    (first, put), (second, _) = [await sent.write("r", target) for target in "ab"]
    assert first["inline"] is second["inline"]
    await put.wait_for_completion()
    assert (await relay_io.read_blob(relay, "r", second))["x"].tolist() == [0, 1, 2, 3, 4]


async def test_a_relay_that_cannot_gets_a_put_for_each_target() -> None:
    relay: Any = PlainRelay()
    sent = FanOut(as_relay(relay), block(0.1, 6))
    for key in ("one", "two"):
        metadata, _ = await sent.write(key, key)
        assert (await relay_io.read_blob(relay, key, metadata))[0] == 6
    assert set(relay.put) == {"one", "two"}


async def test_what_cannot_be_packed_is_each_targets_error(relay: ShmRelay) -> None:
    sent = FanOut(relay, {"x": object()})
    for target in "ab":
        with pytest.raises(TypeError, match=r"\['x'\].*object"):
            await sent.write("r", target)


def _payload(request_id: str, data: Any) -> StagePayload:
    return StagePayload(request_id, OmniRequest(None), data)


async def test_a_stage_writes_a_fan_out_once_and_a_projection_apart(relay: ShmRelay) -> None:
    def project(payload: StagePayload) -> StagePayload:
        return _payload(payload.request_id, block(0.1, 2))

    async with harness(
        relay=relay, get_next=lambda *_: ["t", "u", "v"], project_payload={"u": project}
    ) as stage:
        await stage.work("r", _payload("r", block(0.5, 1)))
        sent = dict(await stage.sends(3))
        assert 0.6 * MIB < relay.arena.written() < 0.7 * MIB
        for target, value in {"t": 1, "u": 2, "v": 1}.items():
            payload = await relay_io.read_payload(relay, "r", sent[target].shm_metadata or {})
            assert payload.data[0] == value
        del payload
        assert relay.arena.outstanding() == 0


async def test_a_stream_chunk_for_several_targets_is_written_once(relay: ShmRelay) -> None:
    async with harness(relay=relay, stream_targets=["t", "u", "v"]) as stage:
        stage.submit("r")
        await until(lambda: not stage.scheduler.inbox.empty())
        stage.emit("r", "stream", block(0.5, 8), metadata={"n": 1})
        for target, message in await stage.sends(3):
            wire = message.shm_metadata or {}
            data, metadata = await relay_io.read_stream_chunk(relay, "r", wire)
            assert (target, data[-1], metadata) == (message.to_stage, 8, {"n": 1})
        assert 0.5 * MIB < relay.arena.written() < 0.6 * MIB


async def test_a_stalled_target_of_a_fan_out_gets_all_in_order_when_it_goes_on(relay: ShmRelay) -> None:
    before, _ = await relay_io.write_blob(relay, "before", block(1.5), target="t")
    async with harness(relay=relay, get_next=lambda *_: ["t", "u"]) as stage:
        for number in range(6):
            await stage.work(f"r{number}", _payload(f"r{number}", block(0.7, number)))
            await until(lambda n=number: len(stage.control_plane.sent) > n)
            target, _, message = stage.control_plane.sent[-1]
            assert (target, message.request_id) == ("u", f"r{number}")
            await relay_io.read_payload(relay, message.request_id, message.shm_metadata)
        await relay_io.read_blob(relay, "before", before)
        for number in range(6):
            await until(lambda n=number: len(stage.control_plane.sent) > 6 + n)
            target, _, message = stage.control_plane.sent[6 + number]
            assert (target, message.request_id) == ("t", f"r{number}")
            payload = await relay_io.read_payload(relay, message.request_id, message.shm_metadata)
            assert payload.data[-1] == number
            del payload
        assert set(held(relay).values()) == {0}
