"""Between processes on one GPU, tensors are lent in place, and copied where that cannot be."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import STREAM, UUID, FakeEvent, FakeGpu, install
from waiting import until

from sglang_omni.pipeline.relay_io import read_payload, read_stream_chunk, send_stream_chunk
from sglang_omni.pipeline.stage.edges.cuda import CudaIpcEdge
from sglang_omni.pipeline.stage.edges.edge import Payload
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.pipeline.stage.edges.relayed import RelayedEdge
from sglang_omni.proto import OmniRequest, StagePayload, codec
from sglang_omni.relay import RelayReadError
from sglang_omni.relay.shm.cuda_driver import CudaError
from sglang_omni.relay.shm.cuda_ipc import CudaLender, borrow
from sglang_omni.relay.shm.loans import MAX_LOANS
from sglang_omni.relay.shm.relay import ShmRelay


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    gpu = install(monkeypatch)
    yield gpu
    if gpu.driver.opened:
        gc.collect()
    deadline = time.monotonic() + 20
    while gpu.driver.opened and time.monotonic() < deadline:
        time.sleep(0.005)  # given back by a thread, which must not meet the real torch.cuda
    assert gpu.driver.opened == []


@pytest.fixture
def sender() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender", slot_size_mb=1, credits=1)
    yield relay
    relay.close()


class Wire:
    """A control plane that packs messages as a real one does."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
        self.sent.append(codec.unpack(codec.pack(message.shm_metadata)))


async def send(relay: Any, data: Any, metadata: dict[str, Any] | None = None, **same_gpu: Any) -> Any:
    wire = Wire()
    await send_stream_chunk(
        relay,
        wire,
        request_id="r",
        data=data,
        target_stage="next",
        target_endpoint="ipc://nowhere",
        from_stage="first",
        chunk_id=0,
        metadata=metadata,
        **(same_gpu or {"same_gpu_targets": {"next"}}),
    )
    return wire.sent[0]


async def test_a_tensor_arrives_where_it_is(gpu: FakeGpu, sender: ShmRelay) -> None:
    source = gpu.tensor(torch.arange(6.0))
    wire = await send(sender, source)
    data, metadata = await read_stream_chunk(ShmRelay("reader"), "r", wire)
    assert data.tolist() == [0, 1, 2, 3, 4, 5]
    assert metadata is None
    source[0] = 9
    assert data[0] == 9


async def test_views_keep_their_offset_and_strides(gpu: FakeGpu, sender: ShmRelay) -> None:
    whole = torch.arange(60, dtype=torch.int16).reshape(5, 12)
    source = gpu.tensor(whole[1:4, 2::3].t())
    data, _ = await read_stream_chunk(ShmRelay("reader"), "r", await send(sender, source))
    assert data.stride() == source.stride()
    assert data.data_ptr() == source.data_ptr()
    assert torch.equal(data, source)


async def test_what_is_lent_and_what_is_copied_come_back_where_they_were(
    gpu: FakeGpu, sender: ShmRelay
) -> None:
    lent, other = gpu.tensor(torch.ones(3)), gpu.tensor(torch.zeros(2, dtype=torch.int64))
    on_cpu = torch.full((4,), 5.0)
    chunk = {"a": [lent, {"b": (other, "text", on_cpu)}], 3: None}
    wire = await send(sender, chunk, {"hidden": lent, "cpu": on_cpu, "n": 1})
    data, metadata = await read_stream_chunk(ShmRelay("reader"), "r", wire)
    assert data["a"][0].data_ptr() == metadata["hidden"].data_ptr() == lent.data_ptr()
    assert data["a"][1]["b"][0].data_ptr() == other.data_ptr()
    assert data["a"][1]["b"][1] == "text"
    assert data[3] is None
    assert metadata["n"] == 1
    for copy in (data["a"][1]["b"][2], metadata["cpu"]):
        assert torch.equal(copy, on_cpu)
        assert copy.data_ptr() != on_cpu.data_ptr()
    assert chunk["a"][0] is lent, "the sender's own chunk was changed"


async def test_bits_of_the_tensor_are_resolved_and_gradients_left_behind(
    gpu: FakeGpu, sender: ShmRelay
) -> None:
    conjugate = gpu.tensor(torch.tensor([1 + 2j, 3 - 1j]).conj())
    leaf = gpu.tensor(torch.ones(2, requires_grad=True))
    data, _ = await read_stream_chunk(ShmRelay("reader"), "r", await send(sender, [conjugate, leaf]))
    assert not data[0].is_conj()
    assert data[0].tolist() == [1 - 2j, 3 + 1j]
    assert not data[1].requires_grad


async def test_tensors_without_elements_need_no_memory(gpu: FakeGpu, sender: ShmRelay) -> None:
    wire = await send(sender, gpu.tensor(torch.empty(0, 3, dtype=torch.bfloat16)))
    data, _ = await read_stream_chunk(ShmRelay("reader"), "r", wire)
    assert (data.shape, data.dtype) == ((0, 3), torch.bfloat16)
    assert gpu.driver.opened == []


async def test_the_reader_waits_for_what_the_sender_had_queued(gpu: FakeGpu, sender: ShmRelay) -> None:
    for _ in range(3):
        await read_stream_chunk(ShmRelay("reader"), "r", await send(sender, gpu.tensor(torch.ones(1))))
    assert gpu.waited == [b"e" * 64] * 3
    assert FakeEvent.made == 1, "an event for each chunk"
    (event,) = sender.loans._lender._events.values()
    assert [stream.cuda_stream for stream in event.recorded] == [STREAM] * 3


async def test_memory_is_kept_until_the_last_view_is_gone(gpu: FakeGpu, sender: ShmRelay) -> None:
    wire = await send(sender, [gpu.tensor(torch.ones(10)), gpu.tensor(torch.ones(5))])
    (first, second), _ = await read_stream_chunk(ShmRelay("reader"), "r", wire)
    part = first.view(2, 5)[1]
    del first, second
    await until(lambda: len(gpu.driver.opened) == 1)
    # What comes back later is noticed, and what came back too early would have been by then.
    await read_stream_chunk(ShmRelay("reader"), "r", await send(sender, gpu.tensor(torch.ones(1))))
    await until(lambda: len(gpu.driver.opened) == 1)
    assert sender.loans.lent() == {"next": 60}
    del part
    await until(lambda: sender.loans.lent() == {})
    await until(lambda: gpu.driver.opened == [])
    assert gpu.synchronized > 0


async def test_a_chunk_nobody_read_is_taken_back(gpu: FakeGpu, sender: ShmRelay) -> None:
    memory = np.ones(10, np.float32)
    left = weakref.ref(memory)
    wire = await send(sender, gpu.tensor(torch.from_numpy(memory)))
    del memory
    assert sender.loans.lent() == {"next": 40}
    assert left() is not None
    sender.cleanup("r")
    await until(lambda: sender.loans.lent() == {})
    assert left() is None, "kept for a reader that cannot come any more"
    with pytest.raises(RelayReadError, match="stale"):
        await read_stream_chunk(ShmRelay("reader"), "r", wire)


async def test_a_killed_reader_gives_back(gpu: FakeGpu, sender: ShmRelay) -> None:
    wire = await send(sender, gpu.tensor(torch.ones(10)))
    ticket = wire["loan"]["ticket"]
    script = (
        "import sys; from sglang_omni._core import ShmLease\n"
        f"lease = ShmLease({ticket['arena']!r}, {tuple(ticket['place'])})\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    reader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert reader.stdout is not None
    assert await reader.stdout.readline() == b"held\n"
    sender.cleanup("r")
    assert sender.loans.lent() == {"next": 40}, "taken back from under a reader"
    reader.kill()
    await reader.wait()
    await until(lambda: sender.loans.lent() == {})


# --- payloads ----------------------------------------------------------------------------------


async def hand_on(relay: ShmRelay, payload: StagePayload, fan_out: FanOut | None = None) -> Any:
    """What announces a payload to a stage on the same GPU."""
    wire = Wire()

    async def endpoint_of(target: str) -> str:
        return ""

    def watch(*_: Any) -> None:
        raise AssertionError("a relay that lends has no put to wait for")

    relayed = RelayedEdge("first", "next", lambda target: relay, wire, endpoint_of, watch)
    item = Payload("r", "first", None if fan_out is not None else payload, fan_out=fan_out)
    await CudaIpcEdge("next", lambda target: relay, relayed).send(item)
    return wire.sent[0]


def encoded(rows: torch.Tensor, *levels: torch.Tensor) -> StagePayload:
    return StagePayload("r", OmniRequest("hi"), {"visuals": [{"embeds": rows, "deepstack": list(levels)}]})


async def test_a_payloads_tensors_stay_where_they_are(gpu: FakeGpu, sender: ShmRelay) -> None:
    rows, level = gpu.tensor(torch.ones(50_000)), gpu.tensor(torch.zeros(50_000))
    sent = encoded(rows, level)
    wire = await hand_on(sender, sent)
    assert wire["loan"] is not None
    assert "inline" in wire, "nothing is left that would need room in shared memory"
    payload = await read_payload(ShmRelay("reader"), "r", wire)
    assert payload.request == sent.request
    (visual,) = payload.data["visuals"]
    assert visual["embeds"].data_ptr() == rows.data_ptr()
    assert visual["deepstack"][0].data_ptr() == level.data_ptr()
    assert sent.data["visuals"][0]["embeds"] is rows, "the sender's own payload was changed"
    assert sender.loans.lent() == {"next": 400_000}
    del payload, visual
    await until(lambda: sender.loans.lent() == {})


async def test_a_payload_that_is_taken_back_frees_what_it_lent(gpu: FakeGpu, sender: ShmRelay) -> None:
    wire = await hand_on(sender, encoded(gpu.tensor(torch.ones(10))))
    sender.cleanup("r")
    await until(lambda: sender.loans.lent() == {})
    with pytest.raises(RelayReadError, match="stale"):
        await read_payload(ShmRelay("reader"), "r", wire)


async def test_a_payload_beyond_the_readers_share_is_copied(gpu: FakeGpu, sender: ShmRelay) -> None:
    big = gpu.tensor(torch.ones(200_000))
    gpu.driver.room = big.nbytes + 64
    first, second = [await hand_on(sender, encoded(big)) for _ in range(2)]
    assert ("loan" in first, "loan" in second) == (True, False)
    payload = await read_payload(ShmRelay("reader"), "r", second)
    assert torch.equal(payload.data["visuals"][0]["embeds"], big)
    sender.cleanup("r")


async def test_what_several_stages_get_as_one_object_is_copied(gpu: FakeGpu, sender: ShmRelay) -> None:
    rows = gpu.tensor(torch.ones(10_000))
    wire = await hand_on(sender, encoded(rows), FanOut(sender, encoded(rows)))
    assert "loan" not in wire
    payload = await read_payload(ShmRelay("reader"), "r", wire)
    assert torch.equal(payload.data["visuals"][0]["embeds"], rows)


async def test_a_payload_without_tensors_on_the_gpu_goes_as_ever(gpu: FakeGpu, sender: ShmRelay) -> None:
    wire = await hand_on(sender, encoded(torch.ones(3)))
    assert "loan" not in wire
    assert gpu.driver.calls == []


# --- where nothing is lent -------------------------------------------------------------------


async def test_cpu_tensors_go_as_ever(sender: ShmRelay) -> None:
    source = torch.arange(10_000.0)
    wire = await send(sender, {"x": source}, {"y": source})
    assert "loan" not in wire
    data, metadata = await read_stream_chunk(ShmRelay("reader"), "r", wire)
    assert torch.equal(data["x"], source)
    assert torch.equal(metadata["y"], source)


async def test_other_targets_get_copies(gpu: FakeGpu, sender: ShmRelay) -> None:
    wire = await send(sender, gpu.tensor(torch.ones(3)), same_gpu_targets={"another"})
    assert "loan" not in wire
    assert gpu.driver.calls == []


async def test_memory_that_cannot_be_exported_is_copied_and_the_reason_logged_once(
    gpu: FakeGpu, sender: ShmRelay, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.driver.refusal = "cuIpcGetMemHandle: invalid argument"
    source = gpu.tensor(torch.arange(3.0))
    for _ in range(2):
        wire = await send(sender, source)
        data, _ = await read_stream_chunk(ShmRelay("reader"), "r", wire)
        assert torch.equal(data, source)
        assert data.data_ptr() != source.data_ptr()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == [
        "Tensors for 'next' are copied although it is on the same GPU: cuIpcGetMemHandle: invalid argument"
    ]


async def test_lending_can_be_switched_off(
    gpu: FakeGpu, sender: ShmRelay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGLANG_OMNI_CUDA_IPC", "0")
    assert "loan" not in await send(sender, gpu.tensor(torch.ones(3)))
    assert "SGLANG_OMNI_CUDA_IPC=0 is set" in caplog.text


async def test_a_relay_that_does_not_lend_copies(gpu: FakeGpu, caplog: pytest.LogCaptureFixture) -> None:
    class Plain(ShmRelay):
        lends_tensors = False

    relay = Plain("plain")
    source = gpu.tensor(torch.arange(3.0))
    wire = await send(relay, source)
    data, _ = await read_stream_chunk(relay, "r", wire)
    assert torch.equal(data, source)
    assert "the Plain does not lend tensors" in caplog.text
    relay.close()


async def test_a_slow_reader_gets_copies_beyond_its_share(
    gpu: FakeGpu, sender: ShmRelay, caplog: pytest.LogCaptureFixture
) -> None:
    big = gpu.tensor(torch.ones(200_000))
    gpu.driver.room = big.nbytes + 64
    first = await send(sender, big)
    second = await send(sender, big)
    assert "loan" in first
    assert "loan" not in second
    assert caplog.records == [], "pressure is nothing to warn of"
    data, _ = await read_stream_chunk(ShmRelay("reader"), "r", first)
    del data
    await until(lambda: sender.loans.lent() == {})
    assert "loan" in await send(sender, big)


async def test_a_reader_that_collects_chunks_gets_copies_before_the_tickets_run_out(
    gpu: FakeGpu, sender: ShmRelay
) -> None:
    part = gpu.tensor(torch.ones(2))
    reader = ShmRelay("reader")
    collected = []
    async with asyncio.timeout(60):
        for _ in range(MAX_LOANS + 5):
            wire = await send(sender, part)
            collected.append((await read_stream_chunk(reader, "r", wire), "loan" in wire))
    assert [lent for _, lent in collected] == [True] * MAX_LOANS + [False] * 5
    assert all(torch.equal(data, part) for (data, _), _ in collected)


# --- what a hostile sender cannot do ---------------------------------------------------------


def described(**changes: Any) -> dict[str, Any]:
    row = {"dtype": "float32", "shape": [2], "stride": [1], "handle": bytes(64), "number": 1, "offset": 0}
    return {"device": UUID, "event": bytes(64), "tensors": [row | changes]}


@pytest.mark.parametrize(
    ("hostile", "text"),
    [
        (None, "not a description"),
        ({"device": UUID, "event": bytes(64)}, "not a description"),
        (described() | {"event": b"short"}, "64 bytes, not 5"),
        (described() | {"event": None}, "not a description"),
        (described() | {"tensors": [7]}, "not the description of a lent tensor"),
        (described(dtype="load"), "unknown torch dtype 'load'"),
        (described(dtype=3), "not the description"),
        (described(number="1"), "not the description"),
        (described(shape=[-1]), "cannot have shape"),
        (described(shape=[True]), "cannot have shape"),
        (described(shape=["2"]), "cannot have shape"),
        (described(stride=[-1]), "cannot have shape"),
        (described(stride=[1 << 63]), "cannot have shape"),
        (described(stride=[]), "1 sizes and 0 strides"),
        (described(shape=[1] * 65, stride=[1] * 65), "at most 64"),
        (described(handle=b"h"), "64 bytes, not 1"),
        (described(handle=None), "memory if it has elements"),
        (described(shape=[0]), "memory if it has elements"),
        (described(offset=-4), "cannot begin at byte -4"),
        (described(offset=2), "cannot begin at byte 2"),
        (described(offset=1 << 70), "of an allocation"),
        (described(shape=[1 << 20]), "bytes 0 to 4194304 of an allocation of 1048576"),
        (described(shape=[2, 2], stride=[1 << 62, 1 << 62]), "of an allocation"),
    ],
)
def test_a_malformed_description_is_an_error(gpu: FakeGpu, hostile: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        borrow(hostile, None)


@pytest.mark.parametrize("loan", [7, {}, {"ticket": {}, "described": {}}, {"ticket": None, "described": {}}])
async def test_a_malformed_loan_is_an_error(gpu: FakeGpu, sender: ShmRelay, loan: Any) -> None:
    wire = await send(sender, "text")
    with pytest.raises((ValueError, RelayReadError)):
        await read_stream_chunk(ShmRelay("reader"), "r", wire | {"loan": loan})


async def test_a_number_without_a_tensor_is_an_error(gpu: FakeGpu, sender: ShmRelay) -> None:
    lent = gpu.tensor(torch.ones(1))
    two = await send(sender, [lent, gpu.tensor(torch.ones(1))])
    one = await send(sender, lent)
    with pytest.raises(ValueError, match="there are 1 lent tensors, not one of number 1"):
        await read_stream_chunk(ShmRelay("reader"), "r", two | {"loan": one["loan"]})


async def test_a_gpu_is_found_by_what_it_is_and_not_by_its_number(
    gpu: FakeGpu, sender: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = await send(sender, gpu.tensor(torch.ones(3)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=["x", "y", UUID][n])
    )
    await read_stream_chunk(ShmRelay("reader"), "r", wire)
    assert gpu.driver.device == 2


def test_a_gpu_that_is_not_visible_is_named(gpu: FakeGpu) -> None:
    with pytest.raises(
        RuntimeError, match=r"GPU GPU-else of the sender is not visible.*SGLANG_OMNI_CUDA_IPC=0"
    ):
        borrow(described() | {"device": "GPU-else"}, None)


def test_a_reader_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(CudaError, match=r"GPU.*; set SGLANG_OMNI_CUDA_IPC=0 for tensors to travel"):
        borrow(described() | {"device": "GPU-else"}, None)


def test_the_same_allocation_is_exported_once_a_chunk(gpu: FakeGpu) -> None:
    whole = torch.arange(16.0)
    CudaLender().describe([whole, whole[1:3], whole[4:]])
    assert gpu.driver.calls == ["export_memory"]


# --- allocations that are open -----------------------------------------------------------------


async def test_an_allocation_is_opened_once_for_all_loans_in_it(gpu: FakeGpu, sender: ShmRelay) -> None:
    whole = gpu.tensor(torch.arange(40.0))
    parts = [gpu.tensor(whole[start : start + 4]) for start in range(0, 16, 4)]
    # Each part has another address, and torch gives all of them one allocation.
    gpu.driver.allocation = lambda address: (whole.data_ptr(), 160)  # type: ignore[method-assign]
    reader = ShmRelay("reader")
    kept = [(await read_stream_chunk(reader, "r", await send(sender, parts[:2])))[0]]
    kept += [(await read_stream_chunk(reader, "r", await send(sender, part)))[0] for part in parts[2:]]
    assert gpu.driver.num_opened == 1
    assert [part.tolist() for part in (*kept[0], *kept[1:])] == [part.tolist() for part in parts]
    assert len(gpu.driver.opened) == 1
    del kept
    await until(lambda: gpu.driver.opened == [])
    assert sender.loans.lent() == {}
