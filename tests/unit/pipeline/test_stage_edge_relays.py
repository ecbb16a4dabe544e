"""A stage whose edges use different relays: each way the right one, and none forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from relay_stand_ins import block
from stage_harness import harness, payload
from waiting import until

from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.stats import StatsReporter
from sglang_omni.proto import DataReadyMessage, StatsMessage, codec
from sglang_omni.relay import create_relay, register_relay
from sglang_omni.relay.shm.relay import ShmRelay


class Distant(ShmRelay):
    """Stands for a relay to other hosts: what comes over it may be anybody's."""

    trusted = False


@dataclass
class Unregistered:
    """A class that this process finds by its name, if the sender is trusted."""

    text: str


def forget_unregistered() -> None:
    """As it is in a process that has never seen one."""
    codec._types.pop(f"{__name__}:Unregistered", None)
    codec._codec.forget_names()


@pytest.fixture
def near() -> Iterator[ShmRelay]:
    relay = ShmRelay("near", slot_size_mb=4)
    yield relay
    relay.close()


@pytest.fixture
def far() -> Iterator[Distant]:
    relay = Distant("far", slot_size_mb=4)
    yield relay
    relay.close()


def edges(near: ShmRelay, far: ShmRelay) -> EdgeRelays:
    """To ``t`` and ``u`` and from ``up`` over one, to ``v`` and ``w`` and from ``host`` over the other."""
    relays: Any = {"shm": near, "nixl": far}
    return EdgeRelays(
        "s", relays, {"t": "shm", "u": "shm", "v": "nixl", "w": "nixl"}, {"up": "shm", "host": "nixl"}
    )


def all_edges(near: ShmRelay, far: ShmRelay, **options: Any) -> Any:
    return harness(relays=edges(near, far), endpoints=dict.fromkeys("tuvw", "test://"), **options)


def written(relay: ShmRelay) -> int:
    return relay.usage().get("relay_written_bytes_total", 0)


def arena_of(message: DataReadyMessage) -> Any:
    assert message.shm_metadata is not None
    info = message.shm_metadata["relay_info"]
    return info.get("relay_info", info)["arena"]


async def test_a_fan_out_is_written_once_for_each_relay(near: ShmRelay, far: Distant) -> None:
    async with all_edges(near, far, get_next=lambda *_: ["t", "u", "v", "w"]) as one:
        await one.work("r", payload("r", block(0.5, 1)))
        sent = dict(await one.sends(4))
        for relay, targets in ((near, "tu"), (far, "vw")):
            assert 2**19 <= written(relay) < 2**19 + 2**12
            for target in targets:
                assert arena_of(sent[target]) == relay.arena.name
                read = await relay_io.read_payload(relay, "r", sent[target].shm_metadata or {})
                assert read.data[-1] == 1


async def test_one_target_each_is_written_for_it_alone(near: ShmRelay, far: Distant) -> None:
    async with all_edges(near, far, get_next=lambda *_: ["v", "t"]) as one:
        await one.work("r", payload("r", block(0.5, 2)))
        sent = dict(await one.sends(2))
        assert arena_of(sent["v"]) == far.arena.name
        assert arena_of(sent["t"]) == near.arena.name


async def test_stream_chunks_go_the_way_of_their_edges(near: ShmRelay, far: Distant) -> None:
    async with all_edges(near, far, stream_targets=["t", "u", "v"]) as one:
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        one.emit("r", "stream", block(0.5, 3), metadata={"part": block(0.1, 4)})
        sent = dict(await one.sends(3))
        # The data once, what it says beside it for each target.
        assert 0.7 * 2**20 < written(near) < 0.8 * 2**20
        assert 0.6 * 2**20 < written(far) < 0.7 * 2**20
        for target, relay in (("t", near), ("u", near), ("v", far)):
            assert arena_of(sent[target]) == relay.arena.name
            data, metadata = await relay_io.read_stream_chunk(relay, "r", sent[target].shm_metadata or {})
            assert (data[0], metadata["part"][0]) == (3, 4)


async def test_a_target_without_a_relay_fails_that_request(near: ShmRelay, far: Distant) -> None:
    targets = {"bad": "x", "good": "v"}
    async with harness(
        relays=edges(near, far),
        endpoints=dict.fromkeys("vx", "test://"),
        get_next=lambda request_id, _: targets[request_id],
    ) as one:
        await one.work("bad", payload("bad", block(0.1)))
        assert "no relay to send to 'x' with" in str((await one.failure()).error)
        await one.work("good", payload("good", block(0.1)))
        assert [target for target, _ in await one.sends(1)] == ["v"]


@pytest.mark.parametrize("nbytes", [10, 100_000], ids=["inline", "relayed"])
async def test_who_sent_it_decides_what_reads_it(near: ShmRelay, far: Distant, nbytes: int) -> None:
    secret = Unregistered("x" * nbytes)
    sender = ShmRelay("sender")
    async with all_edges(near, far) as one:
        # Over the relay of other hosts, over a network in the name of a stage of this host, and from there.
        for request_id, source, trusted in (
            ("far", "host", True),
            ("lie", "up", False),
            ("near", "up", True),
        ):
            metadata, _ = await relay_io.write_payload(sender, request_id, payload(request_id, secret))
            forget_unregistered()
            message = DataReadyMessage(request_id, source, "s", metadata, trusted=trusted)
            one.control_plane.work.put_nowait(message)
            if request_id != "near":
                await until(lambda: bool(one.control_plane.completed))
                failure = one.control_plane.completed.pop()
                assert failure.request_id == request_id
                assert "Unregistered' is not registered here" in str(failure.error)
        await until(lambda: not one.scheduler.inbox.empty())
        assert one.scheduler.inbox.get_nowait().data.data == secret
    sender.close()


async def test_chunks_that_come_over_a_network_name_no_classes(near: ShmRelay, far: Distant) -> None:
    sender = ShmRelay("sender")
    info, _ = await relay_io.write_blob(sender, "key", Unregistered("x"))
    forget_unregistered()
    wire = {"relay_info": info, "chunk_metadata": None, "chunk_metadata_tensors": {}}
    async with all_edges(near, far) as one:
        message = DataReadyMessage("r", "up", "s", wire, chunk_id=0, trusted=False)
        one.control_plane.work.put_nowait(message)
        assert "Unregistered' is not registered here" in str((await one.failure()).error)
    sender.close()


@pytest.mark.parametrize("signal", [{}, {"is_done": True}, {"error": "lies"}, {"chunk_id": 0}])
async def test_nobody_else_may_send(near: ShmRelay, far: Distant, signal: dict[str, Any]) -> None:
    async with all_edges(near, far) as one:
        one.submit("r")
        one.control_plane.work.put_nowait(DataReadyMessage("r", "stranger", "s", {}, **signal))
        failure = await one.failure()
        assert (failure.request_id, failure.error) == ("r", "no edge leads from 'stranger' to 's'")
        assert one.scheduler.aborted == ["r"]
        assert "stranger" not in one.stage._receiver._queues
        while not one.scheduler.inbox.empty():
            one.scheduler.inbox.get_nowait()
        await one.still_works()


async def test_metadata_of_another_backend_fails_that_request(near: ShmRelay, far: Distant) -> None:
    foreign: list[dict[str, Any]] = [
        {"relay_info": {"engine": "nixl", "agent": b"a", "nbytes": 8}, "nbytes": 8},
        {"relay_info": {"engine": "nccl", "address": ["h", 1], "nbytes": 8}, "nbytes": 8},
        {"relay_info": {}, "nbytes": 8},
    ]
    async with all_edges(near, far) as one:
        for number, metadata in enumerate(foreign):
            one.control_plane.work.put_nowait(DataReadyMessage(str(number), "up", "s", metadata))
        await until(lambda: len(one.control_plane.completed) == len(foreign))
        for number, message in enumerate(one.control_plane.completed):
            assert (message.request_id, message.success) == (str(number), False)
            assert str(message.error).startswith("relay read failed: ")
        await one.still_works()


async def test_an_abort_frees_what_every_relay_holds(near: ShmRelay, far: Distant) -> None:
    async with all_edges(near, far, get_next=lambda *_: ["t", "v"]) as one:
        await one.work("r", payload("r", block(0.5)))
        await one.sends(2)
        assert near.arena.outstanding() == far.arena.outstanding() == 1
        one.stage.abort("r")
        assert near.arena.outstanding() == far.arena.outstanding() == 0


async def test_a_stage_closes_every_relay(near: ShmRelay, far: Distant) -> None:
    closed = []

    def close() -> None:
        closed.append("near")
        raise OSError("no")

    near.close, real = close, near.close  # type: ignore[method-assign]
    far.close = lambda: closed.append("far")  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no"):
        edges(near, far).close()
    assert sorted(closed) == ["far", "near"]
    near.close = real  # type: ignore[method-assign]


def test_where_one_cannot_be_opened_none_stays_open() -> None:
    opened = []

    @register_relay("kept_in_a_list")
    class Kept:
        def __init__(self) -> None:
            self.closed = False
            opened.append(self)

        def close(self) -> None:
            self.closed = True

    with pytest.raises(ValueError, match="unknown relay 'nobodys'"):
        EdgeRelays.open("s", {"kept_in_a_list": {}, "nobodys": {}}, {}, {})
    assert [relay.closed for relay in opened] == [True]


async def test_what_relays_count_is_added_up(near: ShmRelay, far: Distant) -> None:
    for relay, mib in ((near, 1), (far, 2)):
        await relay_io.write_blob(relay, "key", block(mib))
    numbers: list[StatsMessage] = []
    one = StatsReporter("s", None, edges(near, far).all, numbers.append)
    one.touch()
    await until(lambda: bool(numbers))
    one.close()
    assert numbers[0].stats["relay_held_slots"] == 2
    assert 3 * 2**20 <= numbers[0].stats["relay_written_bytes_total"] < 3 * 2**20 + 2**13


def test_one_relay_does_for_any_edge() -> None:
    relay = create_relay("shm", engine_id="s")
    one = EdgeRelays.single("s", relay)
    assert one.to("anybody") is one.from_("somebody") is relay
    assert one.expects("somebody")
    one.close()
    none = EdgeRelays.single("s", None)
    assert none.expects("somebody")
    none.cleanup("r")
    none.close()
    with pytest.raises(RuntimeError, match="no relay to send to 'anybody'"):
        none.to("anybody")
    with pytest.raises(RuntimeError, match="no relay to read what 'somebody' sends"):
        none.from_("somebody")
