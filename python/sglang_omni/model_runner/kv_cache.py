"""The paged pool of keys and values that all sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.batch import KVSource
from sglang_omni.model_runner.config import DecoderConfig


class ScratchRow(NamedTuple):
    """A page of no sequence, and the slot of its first token."""

    page: int
    slot: int


class PagedKVCache:
    """Keys and values of ``num_pages`` pages of ``page_size`` tokens, for every layer.

    A token's keys and values are adjacent, so that one gather fetches both. Behind the pages there is one of
    no sequence, for rows that pad a batch to a fixed size.

    Args:
        capture_layer: Keep ``hidden_states[capture_layer]`` (transformers' numbering) of tokens beside their
            keys and values, so that shared prefixes and chunked prompts have them too.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        capture_layer: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.page_size = page_size
        self.scratch = ScratchRow(num_pages, num_pages * page_size)
        heads, dim = config.num_key_value_heads, config.head_dim
        shape = ((num_pages + 1) * page_size, 2 * heads, dim)
        # Zeros, not uninitialized memory: padding is masked by adding -inf, which a NaN survives.
        # Zero pages become resident only when they are written.
        self._slots = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        self._pages = [layer.view(num_pages + 1, -1) for layer in self._slots]
        self._heads, self._dim = heads, dim
        if capture_layer is not None and not 0 <= capture_layer <= config.num_hidden_layers:
            raise ValueError(
                f"capture_layer is {capture_layer}, but the model has {config.num_hidden_layers} layers"
            )
        self.capture_layer = capture_layer
        captured = 0 if capture_layer is None else (num_pages + 1) * page_size
        self._captured = torch.zeros((captured, config.hidden_size), dtype=dtype, device=device)

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Stores (T, 2 * kv_heads, head_dim) at ``slots`` (T,)."""
        self._slots[layer].index_copy_(0, slots, keys_values)

    def read(self, layer: int, source: KVSource) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, kv_heads, length, head_dim)."""
        if source.start is not None:
            rows = self._slots[layer][source.start : source.start + source.length].unsqueeze(0)
        else:
            batch = source.pages.shape[0]
            gathered = self._pages[layer].index_select(0, source.pages.view(-1))
            rows = gathered.view(batch, -1, 2 * self._heads, self._dim)[:, : source.length]
        rows = rows.transpose(1, 2)
        return rows[:, : self._heads], rows[:, self._heads :]

    def paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and values, each (pages, page_size, kv_heads, head_dim)."""
        pages = self._slots[layer].unflatten(0, (-1, self.page_size))
        return pages[:, :, : self._heads], pages[:, :, self._heads :]

    def read_captured(self, pages: Sequence[int], positions: Tensor) -> Tensor:
        """Captured rows (n, hidden_size) at ``positions`` (n,), on the host, of the sequence of ``pages``."""
        slots = torch.tensor(pages)[positions // self.page_size] * self.page_size + positions % self.page_size
        return self._captured[slots.to(self._captured.device)]

    def write_captured(self, slots: Tensor, hidden: Tensor) -> None:
        """Stores captured rows (T, hidden_size) at ``slots`` (T,)."""
        self._captured.index_copy_(0, slots, hidden)
