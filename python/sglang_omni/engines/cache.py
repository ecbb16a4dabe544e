"""A cache of encoders' outputs, for later requests with the same content."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor

# An encoder's output for one item.
ItemOutput = tuple[Tensor, ...]


class OutputCache:
    """The most recently used outputs, by the hash of their content, up to ``max_bytes`` of tensors.

    Attributes:
        used_bytes: Bytes of the tensors it holds.
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
        """Keeps ``output`` unless it is larger than the cache. Its tensors must own their memory."""
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
