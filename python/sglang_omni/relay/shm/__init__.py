"""Shared memory of one host, and of its GPUs: the default relay."""

from sglang_omni.relay.shm.relay import ShmRelay

__all__ = ["ShmRelay"]
