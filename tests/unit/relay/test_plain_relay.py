"""A third party's relay with the four plain methods: what a stage asks of it, for payloads as for chunks."""

from __future__ import annotations

import asyncio
import errno
import gc
import weakref
from typing import Any

import pytest
import torch
from stage_harness import Harness, harness, payload
from waiting import until

from sglang_omni.pipeline import relay_io
from sglang_omni.proto import DataReadyMessage, codec
from sglang_omni.relay import RelayTimeout, create_relay

CHUNK = "r:stream:up:s:0"


class Put:
    """A put that is over when a test says so."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waited_for = False

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        self.waited_for = True
        await self.over


class PlainRelay:
    """Keeps what is put under the key that came with it, until that key is cleaned up."""

    def __init__(self) -> None:
        self.stored: dict[str, torch.Tensor] = {}
        self.puts: weakref.WeakValueDictionary[str, Put] = weakref.WeakValueDictionary()
        self.got: list[str | None] = []
        self.cleaned: list[str] = []

    async def put_async(self, tensor: torch.Tensor, request_id: str) -> Put:
        self.stored[request_id] = tensor.clone()
        put = self.puts[request_id] = Put({"size": tensor.numel()})
        return put

    async def get_async(self, metadata: Any, dest_tensor: torch.Tensor, request_id: str) -> Put:
        self.got.append(request_id)
        dest_tensor.copy_(self.stored[request_id])
        get = Put(metadata)
        get.over.set_result(None)
        return get

    def cleanup(self, request_id: str) -> None:
        self.cleaned.append(request_id)
        self.stored.pop(request_id, None)

    def close(self) -> None: ...


class Upstream:
    """A stage named ``up`` that writes to the harness's through the same relay."""

    def __init__(self, one: Harness) -> None:
        self.one = one

    async def send_to_stage(self, target: str, endpoint: str, message: DataReadyMessage) -> None:
        self.one.control_plane.work.put_nowait(message)

    async def chunk(self, **fields: Any) -> asyncio.Task[None]:
        sending = asyncio.create_task(
            relay_io.send_stream_chunk(
                self.one.relay,
                self,
                request_id="r",
                data=torch.ones(3),
                target_stage="s",
                target_endpoint="",
                from_stage="up",
                chunk_id=0,
                **fields,
            )
        )
        await until(lambda: not self.one.scheduler.inbox.empty() or sending.done())
        return sending


async def streaming(one: Harness, metadata: dict[str, Any] | None = None) -> None:
    """Has the stage send a chunk of request ``r`` to ``t``."""
    one.submit("r")
    await until(lambda: not one.scheduler.inbox.empty())
    assert one.scheduler.received()
    one.emit("r", "stream", torch.ones(3), metadata=metadata)
    await one.sends(1)
    await asyncio.sleep(0)
    gc.collect()


@pytest.mark.parametrize("part", ["", ":mask"], ids=["data", "metadata tensor"])
async def test_a_chunks_puts_are_kept_watched_and_their_failure_ends_the_request(part: str) -> None:
    relay = PlainRelay()
    async with harness(relay=relay, stream_targets=["t"]) as one:
        await streaming(one, {"mask": torch.zeros(2)})
        assert {*relay.puts} == {"r:stream:s:t:0", "r:stream:s:t:0:mask"}, "an operation is not kept"
        await until(lambda: all(put.waited_for for put in relay.puts.values()))
        relay.puts[f"r:stream:s:t:0{part}"].over.set_exception(OSError("the wire broke"))
        failure = await one.failure()
        assert failure.request_id == "r"
        assert failure.error == "sending to 't' failed: OSError: the wire broke"
        await until(lambda: f"r:stream:s:t:0{part}" not in relay.stored)
        await one.still_works()


@pytest.mark.parametrize(
    "error", [RelayTimeout("no room after 30 s"), OSError(errno.EMFILE, "Too many open files")]
)
async def test_what_ran_short_is_the_servers_state(error: Exception) -> None:
    """Another try may find some: the caller gets 503."""
    relay = PlainRelay()
    async with harness(relay=relay, stream_targets=["t"]) as one:
        await streaming(one)
        await until(lambda: all(put.waited_for for put in relay.puts.values()))
        relay.puts["r:stream:s:t:0"].over.set_exception(error)
        failure = await one.failure()
        assert failure.error_info is not None
        assert failure.error_info["status"] == 503
        assert failure.error == f"sending to 't' failed: {type(error).__name__}: {error}"
        await one.still_works()


async def test_an_unread_chunk_does_not_hold_up_the_next() -> None:
    relay = PlainRelay()
    async with harness(relay=relay, stream_targets=["t"]) as one:
        await streaming(one)
        one.emit("r", "stream", torch.ones(3))
        sent = await one.sends(2)
        assert [message.chunk_id for _, message in sent] == [0, 1]
        for put in [*relay.puts.values()]:
            put.over.set_result(None)
        del put
        await until(lambda: not relay.puts)


async def test_the_puts_of_an_aborted_request_are_cleaned_up_once_they_are_over() -> None:
    relay = PlainRelay()
    async with harness(relay=relay, stream_targets=["t"]) as one:
        await streaming(one)
        one.stage.abort("r")
        assert relay.puts["r:stream:s:t:0"], "a transfer under way must not lose what it reads from"
        relay.puts["r:stream:s:t:0"].over.set_exception(TimeoutError())
        await until(lambda: not relay.stored)
        assert not one.control_plane.completed


async def test_without_a_watcher_sending_waits_for_the_puts_after_the_message_is_out() -> None:
    relay = PlainRelay()
    async with harness(relay=relay, can_accept_stream_before_payload=True) as one:
        sending = await Upstream(one).chunk()
        assert not sending.done()
        relay.puts[CHUNK].over.set_exception(OSError("the wire broke"))
        with pytest.raises(OSError, match="the wire broke"):
            await sending


async def test_a_chunk_that_cannot_be_announced_is_cleaned_up() -> None:
    relay = PlainRelay()

    class Deaf:
        async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        await relay_io.send_stream_chunk(
            relay,
            Deaf(),
            request_id="r",
            data=torch.ones(3),
            target_stage="s",
            target_endpoint="",
            from_stage="up",
            chunk_id=0,
        )
    assert not relay.stored


async def test_a_payload_is_cleaned_up_after_it_was_read() -> None:
    relay = PlainRelay()
    async with harness(relay=relay) as one:
        metadata, _put = await relay_io.write_payload(relay, "r", payload("r", torch.ones(3)))
        one.control_plane.work.put_nowait(DataReadyMessage("r", "up", "s", metadata))
        await until(lambda: not one.scheduler.inbox.empty())
        assert torch.equal(one.scheduler.received()[0][2].data, torch.ones(3))
        assert (relay.got, relay.cleaned, relay.stored) == (["r"], ["r"], {})


async def test_a_chunk_is_read_and_cleaned_up_under_the_key_it_was_put_under() -> None:
    relay = PlainRelay()
    async with harness(relay=relay, can_accept_stream_before_payload=True) as one:
        sending = await Upstream(one).chunk(metadata={"mask": torch.zeros(2), "n": 1})
        ((_, _, item),) = one.scheduler.received()
        assert torch.equal(item.data, torch.ones(3))
        assert torch.equal(item.metadata["mask"], torch.zeros(2))
        assert (relay.got, relay.cleaned, relay.stored) == ([CHUNK, f"{CHUNK}:mask"],) * 2 + ({},)
        sending.cancel()


async def test_what_cannot_be_read_is_cleaned_up_too() -> None:
    relay = PlainRelay()
    async with harness(relay=relay, can_accept_stream_before_payload=True) as one:
        relay.stored[CHUNK] = torch.zeros(64, dtype=torch.uint8)
        wire = {
            "relay_info": {"relay_info": {"size": 64}, "nbytes": 64},
            "chunk_metadata": None,
            "chunk_metadata_tensors": {},
        }
        one.control_plane.work.put_nowait(DataReadyMessage("r", "up", "s", wire, chunk_id=0))
        assert "relay read failed" in str((await one.failure()).error)
        assert not relay.stored


async def test_a_relay_that_lends_is_not_cleaned_up_by_a_read() -> None:
    relay = create_relay("shm", engine_id="s")
    async with harness(relay=relay) as one:
        own, _ = await relay_io.write_payload(relay, "r", payload("r", torch.ones(1 << 16)))
        read, _ = await relay_io.write_payload(relay, "r", payload("r", torch.zeros(1 << 16)))
        one.control_plane.work.put_nowait(DataReadyMessage("r", "up", "s", codec.unpack(codec.pack(read))))
        await until(lambda: not one.scheduler.inbox.empty())
        # What the stage itself has put for the request is still there for its reader.
        assert (await relay_io.read_payload(relay, "r", own)).data[0] == 1
