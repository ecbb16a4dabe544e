"""Payloads and stream chunks over a relay.

A payload is packed once: its tensors are noted where they are while its skeleton is encoded, then
header, skeleton and tensors are written in one go to wherever the relay wants them. What a relay can
do beyond the four plain methods it declares (see ``relay.base.Relay``).

Received tensors are views of one buffer and read-only by contract: who wants to write makes a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sglang_omni._core import PayloadPlan
from sglang_omni.pipeline.stage.edges.cuda import borrow, lend
from sglang_omni.proto import DataReadyMessage, Replicas, StagePayload, codec
from sglang_omni.relay.base import Relay, RelayOperation, RelayReadError
from sglang_omni.relay.buffers import bytes_of

if TYPE_CHECKING:
    from sglang_omni.pipeline.stage.edges.fan_out import FanOut


class StageSender(Protocol):
    """The part of a control plane that reaches another stage."""

    async def send_to_stage(self, target: str, endpoint: str, message: DataReadyMessage) -> None: ...


class _Done:
    """The put of a payload that travels inside its own metadata."""

    is_complete = True

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        """Return at once."""


# --- any object ------------------------------------------------------------------------------


async def write_payload(
    relay: Relay, request_id: str, payload: StagePayload, *, target: str | None = None
) -> tuple[dict[str, Any], RelayOperation]:
    """Send a payload.

    Args:
        relay: What carries it.
        request_id: Its request, for ``relay.cleanup``.
        payload: A StagePayload; tensors may be anywhere in it.
        target: The stage it goes to. Targets have credits of their own.

    Returns:
        The metadata ``read_payload`` needs, which packs with ``proto.codec``, and the put, which may
        be waited for after the metadata has been sent.

    Raises:
        TypeError: Something in the payload cannot be encoded; the text names its path and type.
        ValueError: The payload contains itself; the text names the path.
        RelayTimeout: The relay had no room in time; the text says who has it.
    """
    return await _write(relay, request_id, payload, target)


async def read_payload(
    relay: Relay, request_id: str, metadata: Mapping[str, Any], *, trusted: bool = True
) -> StagePayload:
    """The payload that ``write_payload`` sent.

    Args:
        relay: What carries it.
        request_id: Its request.
        metadata: What ``write_payload`` returned.
        trusted: Whether the metadata came from a process of this host and user. Where it did not, or the
            relay is not trusted, the payload may name no class that is not registered.

    Raises:
        RelayReadError: The relay does not have it (any more).
        ValueError: The bytes are malformed.
    """
    payload = await _read(relay, request_id, metadata, trusted)
    if not isinstance(payload, StagePayload):
        raise ValueError(f"expected a StagePayload, got {type(payload).__name__}")
    return payload


async def write_blob(
    relay: Relay, key: str, data: Any, *, target: str | None = None
) -> tuple[dict[str, Any], RelayOperation]:
    """Send a tensor, or any object, under a key. As ``write_payload``."""
    return await _write(relay, key, data, target)


async def read_blob(relay: Relay, key: str, metadata: Mapping[str, Any]) -> Any:
    """What ``write_blob`` sent. As ``read_payload``."""
    return await _read(relay, key, metadata, trusted=True)


async def _write(
    relay: Relay, key: str, obj: Any, target: str | None
) -> tuple[dict[str, Any], RelayOperation]:
    return await write_plan(relay, key, codec.plan(obj), target)


async def write_plan(
    relay: Relay, key: str, plan: PayloadPlan, target: str | None
) -> tuple[dict[str, Any], RelayOperation]:
    """As ``write_blob``, of what ``codec.plan`` has planned. Inline metadata does for any target."""
    nbytes = plan.nbytes
    if nbytes <= getattr(relay, "inline_limit", 0):
        packed = await asyncio.to_thread(plan.to_bytes) if plan.on_device else plan.to_bytes()
        metadata: dict[str, Any] = {"inline": packed}
        return metadata, _Done(metadata)
    put: RelayOperation
    if getattr(relay, "packs", False):
        put = await relay.put_payload(plan, key, target)
    else:
        import torch

        flat = torch.empty(nbytes, dtype=torch.uint8)
        if plan.on_device:
            # The thread has the tensor as well, should nobody wait for it any more.
            await asyncio.to_thread(plan.write_to, bytes_of(flat))
        else:
            plan.write_to(bytes_of(flat))
        put = await relay.put_async(flat.to(getattr(relay, "device", "cpu")), request_id=key)
    return {"relay_info": put.metadata, "nbytes": nbytes}, put


async def _read(relay: Relay, key: str, metadata: Mapping[str, Any], trusted: bool) -> Any:
    buffer: Any
    match metadata:
        case {"inline": bytes(packed)}:
            # Tensors must be writable memory of their own, which a bytes object is not.
            buffer = bytearray(packed)
        case {"relay_info": relay_info, "nbytes": int(nbytes)} if nbytes >= 0:
            if getattr(relay, "lends", False):
                buffer = await relay.get_payload(relay_info)
            else:
                buffer = await _receive(relay, key, relay_info, nbytes)
        case _:
            raise RelayReadError(f"metadata that no write returns: {metadata!r:.200}")
    return codec.unpack_payload(buffer, trusted=trusted and getattr(relay, "trusted", False))


def relayed_bytes(message: DataReadyMessage) -> int:
    """Memory that reading ``message`` takes or keeps in use; 0 for what came in the message itself."""
    info = message.shm_metadata or {}
    if "chunk_metadata" in info:
        info = info["relay_info"]
    return int(info.get("nbytes", 0))


async def _receive(relay: Relay, key: str, relay_info: Any, nbytes: int) -> Any:
    """A payload's bytes through a relay's plain methods. Nothing is left under its key."""
    import torch

    flat = torch.empty(nbytes, dtype=torch.uint8, device=getattr(relay, "device", "cpu"))
    try:
        get = await relay.get_async(metadata=relay_info, dest_tensor=flat, request_id=key)
        await get.wait_for_completion()
    finally:
        relay.cleanup(key)
    return flat.cpu().numpy()


# --- streams ---------------------------------------------------------------------------------


def stream_key(request_id: str, from_stage: str, to_stage: str, chunk_id: int) -> str:
    """The key a chunk's data has at the relay."""
    return f"{request_id}:stream:{from_stage}:{to_stage}:{chunk_id}"


def _metadata_key(key: str, name: str) -> str:
    """The key that a tensor of a chunk's metadata has."""
    return f"{key}:{name}"


async def send_stream_chunk(
    relay: Relay,
    control_plane: StageSender,
    *,
    request_id: str,
    data: Any,
    target_stage: str,
    target_endpoint: str,
    from_stage: str,
    chunk_id: int,
    metadata: dict[str, Any] | None = None,
    same_gpu_targets: Collection[str] | None = None,
    fan_out: FanOut | None = None,
    replicas: Replicas = None,
    watch: Callable[[str, RelayOperation], None] | None = None,
) -> None:
    """Send one chunk of a stream and announce it.

    With a relay that lends its memory, returns as soon as the message is out: the slot comes back by itself
    when the chunk was read. Any other's puts are then waited for.

    Args:
        relay: What carries the data.
        control_plane: What carries the announcement.
        request_id: The request.
        data: A tensor or any object.
        target_stage: The stage to reach.
        target_endpoint: Its endpoint.
        from_stage: The sending stage.
        chunk_id: Position in the stream, from 0.
        metadata: What the chunk says beside its data; may hold tensors.
        same_gpu_targets: Stages of other processes on this stage's GPU. Tensors on it are lent to them,
            without a copy, where the relay can.
        fan_out: Writes the data where other targets get it as well.
        replicas: The request's, as in its SubmitMessage.
        watch: Called with the key and the operation of each put that is to be waited for, once the message
            is out. They are waited for here without it.

    Raises:
        As ``write_payload``, and what a put that was waited for here raises.
    """
    key = stream_key(request_id, from_stage, target_stage, chunk_id)
    loan = None
    if same_gpu_targets and target_stage in same_gpu_targets:
        (data, metadata), loan = await lend(relay, (data, metadata), request_id, target_stage)
    plain, tensors = _split_metadata(metadata or {})
    if fan_out is not None and loan is None:
        info, put = await fan_out.write(key, target_stage)
    else:
        info, put = await _write(relay, key, data, target_stage)
    puts = {key: put}
    wire: dict[str, Any] = {
        "relay_info": info,
        "chunk_metadata": plain if metadata is not None else None,
        "chunk_metadata_tensors": {},
    }
    if loan is not None:
        wire["loan"] = loan
    message = DataReadyMessage(
        request_id, from_stage, target_stage, wire, chunk_id=chunk_id, replicas=replicas
    )
    try:
        for name, plan in tensors.items():
            part = _metadata_key(key, name)
            wire["chunk_metadata_tensors"][name], puts[part] = await write_plan(
                relay, part, plan, target_stage
            )
        await control_plane.send_to_stage(target_stage, target_endpoint, message)
    except BaseException:
        for unread in puts:
            relay.cleanup(unread)
        raise
    if getattr(relay, "lends", False):
        return
    for part, put in puts.items():
        if watch is not None:
            watch(part, put)
        else:
            await put.wait_for_completion()


async def read_stream_chunk(
    relay: Relay, key: str, metadata: Mapping[str, Any], *, trusted: bool = True
) -> tuple[Any, dict[str, Any] | None]:
    """Data and metadata of a chunk, from the ``shm_metadata`` of its message. As ``read_payload``.

    Args:
        key: The chunk's ``stream_key``.
    """
    match metadata:
        case {
            "relay_info": dict(info),
            "chunk_metadata": dict() | None as plain,
            "chunk_metadata_tensors": dict(tensors),
        }:
            pass
        case _:
            raise RelayReadError(f"not the metadata of a stream chunk: {metadata!r:.200}")
    data = await _read(relay, key, info, trusted)
    if tensors:
        read = {
            name: await _read(relay, _metadata_key(key, name), tensor, trusted)
            for name, tensor in tensors.items()
        }
        plain = {**(plain or {}), **read}
    if metadata.get("loan") is not None:
        data, plain = await borrow(relay, (data, plain), metadata["loan"])
    return data, plain


async def send_stream_signal(
    control_plane: StageSender,
    *,
    request_id: str,
    target_stage: str,
    target_endpoint: str,
    from_stage: str,
    is_done: bool = False,
    error: str | None = None,
    replicas: Replicas = None,
) -> None:
    """Tell a stage that a stream is over, or failed with ``error``."""
    message = DataReadyMessage(
        request_id, from_stage, target_stage, None, is_done=is_done, error=error, replicas=replicas
    )
    await control_plane.send_to_stage(target_stage, target_endpoint, message)


def _split_metadata(metadata: dict[str, Any]) -> tuple[dict[str, Any], dict[str, PayloadPlan]]:
    """Entries that hold tensors go through the relay as planned, the others in the message."""
    plain: dict[str, Any] = {}
    tensors: dict[str, PayloadPlan] = {}
    for name, value in metadata.items():
        plan = codec.plan(value)
        if plan.tensors:
            tensors[name] = plan
        else:
            plain[name] = value
    return plain, tensors
