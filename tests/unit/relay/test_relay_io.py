"""Payloads and stream chunks over the shm relay and over a relay with the four plain methods."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from relay_stand_ins import PlainRelay

from sglang_omni.pipeline import relay_io
from sglang_omni.proto import DataReadyMessage, OmniRequest, StagePayload, codec
from sglang_omni.relay import RelayReadError, create_relay

Pair = collections.namedtuple("Pair", "left right")

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


@dataclasses.dataclass
class Box:
    tensor: Any
    label: str = ""


@pytest.fixture(params=["plain", "shm", "inline"])
def relay(request: pytest.FixtureRequest) -> Iterator[Any]:
    relay: Any = PlainRelay() if request.param == "plain" else create_relay("shm", slot_size_mb=8)
    if request.param == "shm":
        relay.inline_limit = 0
    yield relay
    relay.close()


async def through(relay: Any, data: Any) -> Any:
    payload = StagePayload("r", OmniRequest("hello"), data)
    metadata, put = await relay_io.write_payload(relay, "r", payload)
    back = await relay_io.read_payload(relay, "r", codec.unpack(codec.pack(metadata)))
    await put.wait_for_completion(1.0)
    assert (back.request_id, back.request) == ("r", payload.request)
    return back.data


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in dtype, shape and bytes; for dtypes that torch cannot compare too."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    flat = [t.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(*flat)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
async def test_every_dtype_and_dimension(relay: Any, dtype: torch.dtype) -> None:
    source = torch.arange(1, 25, dtype=torch.float32).to(dtype)
    sent = [source, source[3], source[:0].reshape(0, 3), source.reshape(2, 3, 4)]
    for a, b in zip(sent, await through(relay, sent), strict=True):
        assert same(a, b)


async def test_a_view_does_not_drag_its_whole_storage_along() -> None:
    relay = PlainRelay()
    big = torch.zeros(1000, 1000)
    await relay_io.write_blob(
        relay, "k", [big[:, 0], torch.zeros(500, 500)[5, :10], torch.tensor(1.0).expand(1000, 1000)]
    )
    assert relay.stored["k"].numel() < 10_000


async def test_tensors_anywhere(relay: Any) -> None:
    data = {
        "a.b": torch.tensor([1.0]),
        "a": {"b": torch.tensor([2.0])},
        1: [torch.tensor(3)],
        "1": (torch.tensor(4),),
        (1, "x"): Pair(torch.tensor(5), [np.float32(6)]),
        None: Box(StagePayload("inner", OmniRequest([torch.tensor(7)]), {"t": torch.tensor(8)})),
    }
    back = await through(relay, data)
    assert list(back) == list(data)
    assert (back["a.b"].item(), back["a"]["b"].item(), back[1][0].item()) == (1.0, 2.0, 3)
    assert type(back["1"]) is tuple
    pair = back[(1, "x")]
    assert type(pair) is Pair
    assert pair.left.item() == 5
    inner = back[None].tensor
    assert (inner.request.inputs[0].item(), inner.data["t"].item()) == (7, 8)


async def test_a_tensor_that_occurs_twice_is_sent_once_and_arrives_aliased(relay: Any) -> None:
    tensor = torch.arange(30_000.0)
    back = await through(relay, {"a": tensor, "b": [tensor, tensor[10:20], tensor[::3]]})
    if isinstance(relay, PlainRelay):
        assert relay.put["r"] < tensor.nbytes + 2000
    assert back["a"] is back["b"][0]
    back["a"][12] = -1
    assert back["b"][1][2] == -1
    assert back["b"][2][4] == -1


async def test_what_cannot_be_sent_fails_alone(relay: Any) -> None:
    with pytest.raises(TypeError, match=r"\['x'\]\[1\].*sparse"):
        await through(relay, {"x": [1, torch.ones(2).to_sparse()]})
    with pytest.raises(TypeError, match=r"\['x'\]\.label.*object"):
        await through(relay, {"x": Box(torch.ones(1), object())})  # type: ignore[arg-type]
    loop: dict[str, Any] = {"t": torch.ones(2)}
    loop["again"] = [loop]
    with pytest.raises(ValueError, match=r"\['again'\]\[0\] contains itself"):
        await through(relay, loop)
    assert (await through(relay, {"t": torch.ones(2)}))["t"].tolist() == [1, 1]


async def test_every_payload_goes_through_a_plain_relay() -> None:
    relay = PlainRelay()
    assert await through(relay, "no tensors at all") == "no tensors at all"
    assert set(relay.put) == {"r"}
    assert not relay.stored, "what was read is to be cleaned up"


async def test_malformed_metadata_and_bytes_are_errors(relay: Any) -> None:
    for metadata in ({}, {"inline": b"x"}, {"inline": 3}, {"relay_info": {}, "nbytes": -1}):
        with pytest.raises((RelayReadError, ValueError)):
            await relay_io.read_payload(relay, "r", metadata)
    metadata, _ = await relay_io.write_blob(relay, "k", [1, 2])
    with pytest.raises(ValueError, match="expected a StagePayload, got list"):
        await relay_io.read_payload(relay, "k", metadata)


class _Sent:
    def __init__(self) -> None:
        self.messages: list[tuple[str, str, DataReadyMessage]] = []

    async def send_to_stage(self, target: str, endpoint: str, message: DataReadyMessage) -> None:
        self.messages.append((target, endpoint, message))


async def test_a_stream_chunk_carries_its_data_and_metadata(relay: Any) -> None:
    control = _Sent()
    ends = {"target_stage": "speak", "target_endpoint": "ipc://speak", "from_stage": "think"}
    metadata = {"modality": "audio", "codes": [torch.tensor([4, 5])]}
    await relay_io.send_stream_chunk(
        relay, control, request_id="r", data=torch.ones(3), chunk_id=7, metadata=metadata, **ends
    )
    [(target, endpoint, message)] = control.messages
    assert (target, endpoint, message.chunk_id, message.is_done) == ("speak", "ipc://speak", 7, False)
    wire = message.shm_metadata
    assert wire is not None
    assert set(wire) == {"relay_info", "chunk_metadata", "chunk_metadata_tensors"}
    assert wire["chunk_metadata"] == {"modality": "audio"}
    if isinstance(relay, PlainRelay):
        assert set(relay.stored) == {"r:stream:think:speak:7", "r:stream:think:speak:7:codes"}
    data, back = await relay_io.read_stream_chunk(relay, "r", codec.unpack(codec.pack(wire)))
    assert torch.equal(data, torch.ones(3))
    assert back is not None
    assert back["modality"] == "audio"
    assert back["codes"][0].tolist() == [4, 5]

    await relay_io.send_stream_chunk(relay, control, request_id="r", data={"text": "a"}, chunk_id=8, **ends)
    wire = control.messages[-1][2].shm_metadata
    assert wire is not None
    assert await relay_io.read_stream_chunk(relay, "r", wire) == ({"text": "a"}, None)


async def test_a_stream_signal_is_a_message_alone() -> None:
    control = _Sent()
    ends = {"target_stage": "speak", "target_endpoint": "ipc://speak", "from_stage": "think"}
    await relay_io.send_stream_signal(control, request_id="r", is_done=True, **ends)
    await relay_io.send_stream_signal(control, request_id="r", error="broken", **ends)
    done, failed = (message for _, _, message in control.messages)
    assert (done.is_done, done.error, done.shm_metadata) == (True, None, None)
    assert (failed.is_done, failed.error) == (False, "broken")


async def test_received_tensors_keep_their_memory_alive() -> None:
    relay = create_relay("shm", slot_size_mb=8)
    metadata, _ = await relay_io.write_blob(relay, "k", {"t": torch.arange(50_000), "n": np.arange(9)})
    data = await relay_io.read_blob(relay, "k", metadata)
    corner, number = data["t"][-3:], data["n"][2:]
    del data
    assert relay.arena.outstanding() == 1
    del corner
    assert relay.arena.outstanding() == 1
    relay_stats = relay.stats()
    assert relay_stats[""]["held"] > 400_000
    del number
    assert relay.arena.outstanding() == 0
    relay.close()
