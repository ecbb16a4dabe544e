"""Payloads over relays. Contract: existing code imports from this path."""

from sglang_omni.pipeline.stage.edges.relay_io import (
    read_blob,
    read_payload,
    send_stream_chunk,
    send_stream_signal,
    write_blob,
    write_payload,
)

__all__ = [
    "read_blob",
    "read_payload",
    "send_stream_chunk",
    "send_stream_signal",
    "write_blob",
    "write_payload",
]
