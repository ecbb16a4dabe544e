"""The edge between two processes: packs items, writes them over a relay, announces them, and reads them.

An object is packed once: the walk that encodes its skeleton notes its tensors, then header, skeleton and
tensors are written in one go to the relay's memory. What a relay can do beyond the four plain methods it
declares (see ``relay.base.Relay``). ``pipeline/relay_io.py`` has these functions for code outside a stage.

Received tensors are views of one buffer and read-only by contract: to write to one, copy it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from sglang_omni._core import PayloadPlan
from sglang_omni.compat.plain_relay import read_flat, write_flat
from sglang_omni.pipeline.stage.edges.cuda import import_tensors
from sglang_omni.pipeline.stage.edges.edge import End, FailChunk, Item, Payload, StreamChunk, Written
from sglang_omni.pipeline.transport.ipc.address import is_on_this_host
from sglang_omni.proto import DataReadyBatchMessage, DataReadyMessage, StagePayload, codec
from sglang_omni.relay.base import Relay, RelayOperation, RelayReadError

# A target on another host has an endpoint as soon as it is ready, and no request comes before that: only the
# message that brings the endpoint is waited for. After that time sending fails, and with it the request.
_ENDPOINT_WAIT_S = 30.0


class _Done:
    """The put of an object that travels inside its own metadata."""

    is_complete = True

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        """Returns at once."""


# --- one object ------------------------------------------------------------------------------


async def write(relay: Relay, key: str, obj: Any, target: str | None) -> Written:
    """Writes any object under a key, by the credits of ``target``.

    Raises TypeError or ValueError, with the path of what cannot be encoded, and RelayTimeout if there was no
    room in time.
    """
    return await write_plan(relay, key, codec.plan(obj), target)


async def write_plan(relay: Relay, key: str, plan: PayloadPlan, target: str | None) -> Written:
    """Writes a planned object. Inline metadata does for any target. May raise RelayTimeout."""
    nbytes = plan.nbytes
    if nbytes <= relay.inline_limit:
        packed = await asyncio.to_thread(plan.to_bytes) if plan.on_device else plan.to_bytes()
        metadata: dict[str, Any] = {"inline": packed}
        return metadata, _Done(metadata)
    if relay.packs:
        put = await relay.put_payload(plan, key, target)
    else:
        put = await write_flat(relay, key, plan)
    return {"relay_info": put.metadata, "nbytes": nbytes}, put


async def read(relay: Relay, key: str, metadata: Mapping[str, Any], trusted: bool = True) -> Any:
    """The object that ``write`` wrote under ``key``.

    Unless the metadata and the relay are ``trusted``, it may name only registered classes. Raises
    RelayReadError if the relay does not have it (any more), and ValueError if the bytes are malformed.
    """
    buffer: Any
    match metadata:
        case {"inline": bytes(packed)}:
            # Tensors must be writable memory of their own, which a bytes object is not.
            buffer = bytearray(packed)
        case {"relay_info": relay_info, "nbytes": int(nbytes)} if nbytes >= 0:
            if relay.lends:
                buffer = await relay.get_payload(relay_info)
            else:
                buffer = await read_flat(relay, key, relay_info, nbytes)
        case _:
            raise RelayReadError(f"metadata that no write returns: {metadata!r:.200}")
    return codec.unpack_payload(buffer, trusted=trusted and relay.trusted)


# --- items: the sending end ------------------------------------------------------------------


class StageSender(Protocol):
    """The part of a control plane that reaches another stage."""

    async def send_to_stage(
        self, target: str, endpoint: str, message: DataReadyMessage | DataReadyBatchMessage, /
    ) -> None: ...


class TargetEndpoints:
    """Where each target receives: instance -> endpoint, empty while unknown.

    Endpoints on the stage's own host are known from the start, those on other hosts come later.
    """

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self._endpoints = dict(endpoints)
        self._changed = asyncio.Event()

    def update(self, endpoints: Mapping[str, str]) -> dict[str, str]:
        """Takes endpoints on other hosts and returns those that are new.

        An instance on this host keeps its ``ipc://`` endpoint.
        """
        moved = {}
        for instance, endpoint in endpoints.items():
            known = self._endpoints.get(instance, "")
            if known != endpoint and not is_on_this_host(known):
                moved[instance] = endpoint
        self._endpoints |= moved
        self._changed.set()
        self._changed = asyncio.Event()
        return moved

    async def of(self, target: str) -> str:
        """The target's endpoint. Raises RuntimeError if it stays unknown for 30 s."""
        return self._endpoints.get(target) or await self._wait_for(target)

    async def _wait_for(self, target: str) -> str:
        try:
            async with asyncio.timeout(_ENDPOINT_WAIT_S):
                while not self._endpoints.get(target):
                    await self._changed.wait()
        except TimeoutError:
            raise RuntimeError(
                f"no endpoint of stage {target!r} has become known within {_ENDPOINT_WAIT_S:g} s: is its "
                "process up?"
            ) from None
        return self._endpoints[target]


class RelayedEdge:
    """Writes items over a relay and announces them through the control plane.

    Args:
        source: The sending instance.
        target: The receiving instance. Each target has credits of its own.
        relay_to: ``relay_to(target)`` returns the relay, or raises RuntimeError. Asked once, with the first
            payload or chunk.
        sender: Carries the announcements.
        endpoint_of: ``endpoint_of(target)`` returns where it receives; may wait, and raise RuntimeError.
        watch: ``watch(request_id, key, put, relay)`` is called for each put that must be waited for, once it
            is announced. A relay that lends its memory gets it back by itself: it has no such put.
    """

    def __init__(
        self,
        source: str,
        target: str,
        relay_to: Callable[[str], Relay],
        sender: StageSender,
        endpoint_of: Callable[[str], Awaitable[str]],
        watch: Callable[[str, str, RelayOperation, Relay], None],
    ) -> None:
        self._source = source
        self._target = target
        self._relay_to = relay_to
        self._sender = sender
        self._endpoint_of = endpoint_of
        self._watch = watch
        self._relay: Relay | None = None

    async def send(self, item: Item) -> None:
        """Returns once the item is announced.

        Raises what ``write`` raises, and RuntimeError if no relay or endpoint of the target is known.
        """
        if type(item) is End:
            end = DataReadyMessage(item.request_id, self._source, self._target, None, replicas=item.replicas)
            end.is_done, end.error = item.error is None, item.error
            await self._announce(end)
            return
        if self._relay is None:
            self._relay = self._relay_to(self._target)
        if type(item) is Payload:
            await self._send_payload(item, self._relay)
        elif type(item) is StreamChunk:
            await self._send_chunk(item, self._relay)

    async def send_chunks(self, chunks: Iterable[StreamChunk], fail: FailChunk) -> None:
        """Sends those together that travel inside of their message.

        They leave before another one waits for credit, which its reader may give back only after them.
        """
        inline: list[tuple[StreamChunk, dict[str, Any]]] = []
        for chunk in chunks:
            try:
                wire = self._inline(chunk)
                if wire is None:
                    await self._announce_chunks(inline, fail)
                    inline = []
                    await self.send(chunk)
                else:
                    inline.append((chunk, wire))
            except Exception as exc:  # noqa: BLE001  whatever a chunk holds, it is its own request's failure
                fail(chunk, exc)
        await self._announce_chunks(inline, fail)

    async def _announce_chunks(
        self, inline: list[tuple[StreamChunk, dict[str, Any]]], fail: FailChunk
    ) -> None:
        if not inline:
            return
        try:
            if len(inline) == 1:
                ((chunk, wire),) = inline
                await self._announce(self._message(chunk, wire))
            else:
                sent = [(chunk.request_id, wire, chunk.chunk_id, chunk.replicas) for chunk, wire in inline]
                await self._announce(DataReadyBatchMessage(self._source, self._target, sent))
        except Exception as exc:  # noqa: BLE001  reported for each request
            for chunk, _ in inline:
                fail(chunk, exc)

    def _inline(self, chunk: StreamChunk) -> dict[str, Any] | None:
        """The chunk as it travels inside of its message; None if it cannot.

        Raises TypeError or ValueError if it cannot be encoded, and RuntimeError if there is no relay.
        """
        if chunk.fan_out is not None or chunk.exported is not None:
            return None
        if self._relay is None:
            self._relay = self._relay_to(self._target)
        plan = codec.plan(chunk.data)
        if plan.on_device or plan.nbytes > self._relay.inline_limit:
            return None
        plain, tensors = _split_metadata(chunk.metadata or {})
        if tensors:
            return None
        return {
            "relay_info": {"inline": plan.to_bytes()},
            "chunk_metadata": plain if chunk.metadata is not None else None,
            "chunk_metadata_tensors": {},
        }

    def _message(self, chunk: StreamChunk, wire: dict[str, Any]) -> DataReadyMessage:
        return DataReadyMessage(
            chunk.request_id,
            self._source,
            self._target,
            wire,
            chunk_id=chunk.chunk_id,
            replicas=chunk.replicas,
        )

    async def _send_payload(self, item: Payload, relay: Relay) -> None:
        key = item.request_id
        if item.fan_out is not None:
            metadata, put = await item.fan_out.write(key, self._target)
        else:
            metadata, put = await write(relay, key, item.data, self._target)
        if item.exported is not None:
            metadata = {**metadata, "loan": item.exported}
        # The message leaves before the put is waited for: reading is what completes it.
        await self._announce(
            DataReadyMessage(key, self._source, self._target, metadata, replicas=item.replicas)
        )
        if not relay.lends:
            self._watch(item.request_id, key, put, relay)

    async def _send_chunk(self, item: StreamChunk, relay: Relay) -> None:
        key = stream_key(item.request_id, self._source, self._target, item.chunk_id)
        plain, tensors = _split_metadata(item.metadata or {})
        if item.fan_out is not None:
            info, put = await item.fan_out.write(key, self._target)
        else:
            info, put = await write(relay, key, item.data, self._target)
        puts = {key: put}
        parts: dict[str, Any] = {}
        wire: dict[str, Any] = {
            "relay_info": info,
            "chunk_metadata": plain if item.metadata is not None else None,
            "chunk_metadata_tensors": parts,
        }
        if item.exported is not None:
            wire["loan"] = item.exported
        message = self._message(item, wire)
        try:
            for name, plan in tensors.items():
                part = _metadata_key(key, name)
                parts[name], puts[part] = await write_plan(relay, part, plan, self._target)
            await self._announce(message)
        except BaseException:
            for unread in puts:
                relay.cleanup(unread)
            raise
        if not relay.lends:
            for part, put in puts.items():
                self._watch(item.request_id, part, put, relay)

    async def _announce(self, message: DataReadyMessage | DataReadyBatchMessage) -> None:
        await self._sender.send_to_stage(self._target, await self._endpoint_of(self._target), message)


# --- items: the receiving end ----------------------------------------------------------------


async def read_item(relay: Relay, message: DataReadyMessage) -> Payload | StreamChunk:
    """The payload or chunk that ``message`` announces. Raises RelayError or ValueError, as ``read`` does."""
    request_id, source, wire = message.request_id, message.from_stage, message.shm_metadata or {}
    if message.chunk_id is None:
        payload = await read_payload(relay, request_id, wire, message.trusted)
        return Payload(request_id, source, payload, message.replicas, nbytes=_nbytes(wire))
    key = stream_key(request_id, source, message.to_stage, message.chunk_id)
    data, metadata = await read_stream_chunk(relay, key, wire, trusted=message.trusted)
    nbytes = _nbytes(wire["relay_info"])
    return StreamChunk(request_id, source, message.chunk_id, data, metadata, message.replicas, nbytes=nbytes)


async def read_payload(
    relay: Relay, request_id: str, metadata: Mapping[str, Any], trusted: bool = True
) -> StagePayload:
    """The payload that was written under its request's id. Raises RelayError or ValueError."""
    payload = await read(relay, request_id, metadata, trusted)
    if not isinstance(payload, StagePayload):
        raise ValueError(f"expected a StagePayload, got {type(payload).__name__}")
    if metadata.get("loan") is not None:
        payload = replace(payload, data=await import_tensors(relay, payload.data, metadata["loan"]))
    return payload


async def read_stream_chunk(
    relay: Relay, key: str, wire: Mapping[str, Any], *, trusted: bool = True
) -> tuple[Any, dict[str, Any] | None]:
    """Data and metadata of the chunk with this ``stream_key``, from the ``shm_metadata`` of its message.

    Raises RelayError or ValueError, as ``read`` does.
    """
    match wire:
        case {
            "relay_info": dict(info),
            "chunk_metadata": dict() | None as plain,
            "chunk_metadata_tensors": dict(tensors),
        }:
            pass
        case _:
            raise RelayReadError(f"not the metadata of a stream chunk: {wire!r:.200}")
    data = await read(relay, key, info, trusted)
    if tensors:
        parts = {
            name: await read(relay, _metadata_key(key, name), part, trusted) for name, part in tensors.items()
        }
        plain = {**(plain or {}), **parts}
    if wire.get("loan") is not None:
        data, plain = await import_tensors(relay, (data, plain), wire["loan"])
    return data, plain


def stream_key(request_id: str, from_stage: str, to_stage: str, chunk_id: int) -> str:
    """The key that a chunk's data has at the relay."""
    return f"{request_id}:stream:{from_stage}:{to_stage}:{chunk_id}"


def _metadata_key(key: str, name: str) -> str:
    """The key that a tensor of a chunk's metadata has."""
    return f"{key}:{name}"


def _nbytes(metadata: Mapping[str, Any]) -> int:
    """Memory that reading takes or keeps in use; 0 for what came in the message itself."""
    return int(metadata.get("nbytes", 0))


def _split_metadata(metadata: dict[str, Any]) -> tuple[dict[str, Any], dict[str, PayloadPlan]]:
    """Entries without tensors, which go in the message, and those with tensors, planned for the relay."""
    plain: dict[str, Any] = {}
    tensors: dict[str, PayloadPlan] = {}
    for name, value in metadata.items():
        plan = codec.plan(value)
        if plan.tensors:
            tensors[name] = plan
        else:
            plain[name] = value
    return plain, tensors
