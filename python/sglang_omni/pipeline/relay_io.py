"""Payloads and stream chunks over any relay. Contract: existing code imports from this path.

A relay may have the four plain methods alone; what it can do beyond them it declares (``relay.base.Relay``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sglang_omni.compat.plain_relay import as_relay
from sglang_omni.pipeline.stage.edges import relayed
from sglang_omni.pipeline.stage.edges.cuda import CudaIpcEdge
from sglang_omni.pipeline.stage.edges.edge import OutgoingEdge, StreamChunk
from sglang_omni.pipeline.stage.edges.relayed import RelayedEdge, StageSender
from sglang_omni.proto import DataReadyMessage, Replicas, StagePayload
from sglang_omni.relay.base import Relay, RelayOperation

__all__ = [
    "read_blob",
    "read_payload",
    "read_stream_chunk",
    "send_stream_chunk",
    "send_stream_signal",
    "write_blob",
    "write_payload",
]


async def write_payload(
    relay: Relay, request_id: str, payload: StagePayload, *, target: str | None = None
) -> tuple[dict[str, Any], RelayOperation]:
    """Sends a payload; tensors may be anywhere in it.

    Args:
        request_id: The payload's key, for ``relay.cleanup``.
        target: The stage that reads it. Targets have credits of their own.

    Returns:
        The metadata ``read_payload`` needs, which packs with ``proto.codec``, and the put, which may be
        waited for after the metadata was sent.

    Raises:
        TypeError: Something in the payload cannot be encoded; the text names its path and type.
        ValueError: The payload contains itself; the text names the path.
        RelayTimeout: The relay had no room in time; the text says who holds it.
    """
    return await relayed.write(as_relay(relay), request_id, payload, target)


async def read_payload(
    relay: Relay, request_id: str, metadata: Mapping[str, Any], *, trusted: bool = True
) -> StagePayload:
    """The payload that ``write_payload`` sent.

    Args:
        metadata: What ``write_payload`` returned.
        trusted: True if the metadata came from a process of this host and user. Otherwise, and if the relay
            is not trusted, the payload may name only registered classes.

    Raises:
        RelayReadError: The relay does not have it (any more).
        ValueError: The bytes are malformed.
    """
    return await relayed.read_payload(as_relay(relay), request_id, metadata, trusted)


async def write_blob(
    relay: Relay, key: str, data: Any, *, target: str | None = None
) -> tuple[dict[str, Any], RelayOperation]:
    """Sends a tensor, or any object, under a key. Returns and raises what ``write_payload`` does."""
    return await relayed.write(as_relay(relay), key, data, target)


async def read_blob(relay: Relay, key: str, metadata: Mapping[str, Any]) -> Any:
    """What ``write_blob`` sent. Raises RelayReadError or ValueError, as ``read_payload`` does."""
    return await relayed.read(as_relay(relay), key, metadata)


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
    replicas: Replicas = None,
) -> None:
    """Sends one chunk of a stream and announces it.

    Returns once the message is out, if the relay lends its memory; otherwise once the puts are over.

    Args:
        control_plane: Carries the announcement.
        data: A tensor or any object.
        target_endpoint: Where ``target_stage`` receives.
        chunk_id: The position in the stream, from 0.
        metadata: What the chunk says beside its data; may hold tensors.
        same_gpu_targets: Stages of other processes on this stage's GPU. Tensors on it are exported to them
            without a copy, if the relay can.
        replicas: Those of the request's SubmitMessage.

    Raises:
        TypeError: Something in the chunk cannot be encoded; the text names its path and type.
        ValueError: The chunk contains itself; the text names the path.
        RelayError: The relay had no room in time, or a put failed.
    """
    relay = as_relay(relay)
    puts: list[RelayOperation] = []

    async def endpoint_of(target: str) -> str:
        return target_endpoint

    edge: OutgoingEdge = RelayedEdge(
        from_stage,
        target_stage,
        lambda target: relay,
        control_plane,
        endpoint_of,
        lambda request_id, key, put, relay: puts.append(put),
    )
    if same_gpu_targets and target_stage in same_gpu_targets:
        edge = CudaIpcEdge(target_stage, lambda target: relay, edge)
    await edge.send(StreamChunk(request_id, from_stage, chunk_id, data, metadata, replicas))
    for put in puts:
        await put.wait_for_completion()


async def read_stream_chunk(
    relay: Relay, key: str, metadata: Mapping[str, Any], *, trusted: bool = True
) -> tuple[Any, dict[str, Any] | None]:
    """Data and metadata of a chunk, from the ``shm_metadata`` of its message.

    ``key`` is ``"{request_id}:stream:{from}:{to}:{chunk_id}"``. Raises RelayError or ValueError.
    """
    return await relayed.read_stream_chunk(as_relay(relay), key, metadata, trusted=trusted)


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
    """Tells a stage that a stream is over, or failed with ``error``."""
    message = DataReadyMessage(
        request_id, from_stage, target_stage, None, is_done=is_done, error=error, replicas=replicas
    )
    await control_plane.send_to_stage(target_stage, target_endpoint, message)
