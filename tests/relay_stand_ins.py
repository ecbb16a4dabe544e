"""A relay as another package may bring it, and payloads of a given size."""

from __future__ import annotations

from typing import Any

import torch

MIB = 1 << 20


def block(mebibytes: float, value: int = 0) -> torch.Tensor:
    return torch.full((int(mebibytes * MIB),), value, dtype=torch.uint8)


class _Finished:
    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        return None


class PlainRelay:
    """What a third party might write: the four methods and nothing else."""

    def __init__(self) -> None:
        self.stored: dict[str, torch.Tensor] = {}
        self.put: dict[str, int] = {}

    async def put_async(self, tensor: torch.Tensor, request_id: str) -> _Finished:
        assert tensor.dtype == torch.uint8
        assert tensor.dim() == 1
        self.stored[request_id] = tensor.clone()
        self.put[request_id] = tensor.numel()
        return _Finished({"where": request_id, "size": tensor.numel()})

    async def get_async(self, metadata: Any, dest_tensor: torch.Tensor, request_id: str) -> _Finished:
        dest_tensor.copy_(self.stored[metadata["where"]])
        return _Finished(metadata)

    def cleanup(self, request_id: str) -> None:
        self.stored.pop(request_id, None)

    def close(self) -> None:
        self.stored.clear()
