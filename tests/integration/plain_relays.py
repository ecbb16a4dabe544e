"""A third party's relay: the four methods, a file for each key, nothing declared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch


class FileTransfer:
    """Over when the reader has cleaned its file up."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.metadata = {"file": file.name}

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        async with asyncio.timeout(timeout):
            while self._file.exists():
                await asyncio.sleep(0.005)


class FileRelay:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _file(self, key: str) -> Path:
        return self._folder / quote(key, safe="")

    async def put_async(self, tensor: torch.Tensor, request_id: str) -> FileTransfer:
        file = self._file(request_id)
        if file.exists():
            raise FileExistsError(f"{file.name} was not cleaned up")
        file.write_bytes(tensor.numpy().tobytes())
        return FileTransfer(file)

    async def get_async(
        self, metadata: Mapping[str, Any], dest_tensor: torch.Tensor, request_id: str
    ) -> FileTransfer:
        data = self._file(request_id).read_bytes()
        dest_tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return FileTransfer(self._folder / "nothing")

    def cleanup(self, request_id: str) -> None:
        self._file(request_id).unlink(missing_ok=True)

    def close(self) -> None: ...
