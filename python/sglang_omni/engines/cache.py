"""Outputs of encoders, kept for the next request that brings the same content."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor

# What an encoder gives for one item.
ItemOutput = tuple[Tensor, ...]


class OutputCache:
    """The most recently used outputs, as many as fit ``max_bytes``; by the hash of the content they are of.

    Attributes:
        used_bytes: What the tensors hold.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._outputs: OrderedDict[bytes, ItemOutput] = OrderedDict()

    def __len__(self) -> int:
        return len(self._outputs)

    def get(self, key: bytes) -> ItemOutput | None:
        output = self._outputs.get(key)
        if output is not None:
            self._outputs.move_to_end(key)
        return output

    def put(self, key: bytes, output: ItemOutput) -> None:
        """Keeps ``output``, whose tensors must own their memory, unless it alone is larger than the cache."""
        size = _size(output)
        if size > self.max_bytes:
            return
        if (old := self._outputs.pop(key, None)) is not None:
            self.used_bytes -= _size(old)
        while self.used_bytes + size > self.max_bytes:
            _, oldest = self._outputs.popitem(last=False)
            self.used_bytes -= _size(oldest)
        self._outputs[key] = output
        self.used_bytes += size

    def clear(self) -> None:
        self._outputs.clear()
        self.used_bytes = 0


def _size(output: ItemOutput) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in output)
