"""The keys and values of all transcripts in work: those of their tokens, and those of what was heard."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_omni.models.whisper.components.checkpoint import WhisperShape


class CacheSlot:
    """One transcript's place in the cache, which may change between two steps."""

    def __init__(self, index: int) -> None:
        self.index = index


class DecoderCache:
    """A fixed number of slots, of which the first are in use, so that a step reads them without a copy.

    A slot that becomes free is filled with the last one in use.

    Attributes:
        keys, values: (layers, slots, heads, context_length + 1, head_dim). The last position is for slots
            that are in no step.
        cross_keys, cross_values: (layers, slots, heads, positions, head_dim).
    """

    def __init__(
        self, shape: WhisperShape, num_slots: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        heads, size = shape.decoder_heads, shape.hidden_size // shape.decoder_heads
        # Zeros, because a masked value that is no number still spoils a sum.
        own = (shape.decoder_layers, num_slots, heads, shape.context_length + 1, size)
        heard = (shape.decoder_layers, num_slots, heads, shape.positions, size)
        self.keys, self.values = (torch.zeros(own, dtype=dtype, device=device) for _ in range(2))
        self.cross_keys, self.cross_values = (
            torch.zeros(heard, dtype=dtype, device=device) for _ in range(2)
        )
        self.num_slots = num_slots
        self.scratch_position = shape.context_length
        self._used: list[CacheSlot] = []

    @property
    def num_used(self) -> int:
        return len(self._used)

    def acquire(self) -> CacheSlot:
        """
        Raises:
            RuntimeError: All slots are in use.
        """
        if len(self._used) == self.num_slots:
            raise RuntimeError(f"all {self.num_slots} slots of the decoder's cache are in use")
        slot = CacheSlot(len(self._used))
        self._used.append(slot)
        return slot

    def release(self, slot: CacheSlot) -> None:
        last = self._used.pop()
        if last is slot:
            return
        for tensor in self._tensors:
            tensor[:, slot.index] = tensor[:, last.index]
        last.index = slot.index
        self._used[slot.index] = last

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, self.cross_keys, self.cross_values
