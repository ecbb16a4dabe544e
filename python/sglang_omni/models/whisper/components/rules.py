"""Whisper's rules of decoding: which tokens may follow, above all those of times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.models.whisper.components.checkpoint import WhisperTokens


class Allowed(NamedTuple):
    """The tokens of which one may follow, besides those that are never chosen.

    Attributes:
        text_from: Of text and control tokens, those from here on.
        times_from, times_to: Of times, those from the first up to the last.
        is_first: True for the first token of a text.
    """

    text_from: int
    times_from: int
    times_to: int
    is_first: bool


class DecodingRules:
    """The rules of a checkpoint.

    Times come in pairs, the end of a segment and the beginning of the next, but for the first and the last;
    they do not decrease; and if times together are likelier than any word, a time follows.

    Args:
        tokens: The checkpoint's.
        times: True if times are written.
        device: Of the logits.
    """

    def __init__(
        self, tokens: WhisperTokens, vocab_size: int, *, times: bool, device: torch.device | str
    ) -> None:
        self._end = tokens.end
        self._vocab_size = vocab_size
        begin = tokens.timestamps_begin if times else None
        # Without times, there are none in the vocabulary.
        self._begin = vocab_size if begin is None else begin
        self.writes_times = begin is not None
        initial = tokens.max_initial_timestamp
        self._last_initial = vocab_size - 1 if initial is None else self._begin + initial
        never = [*tokens.suppressed]
        if self.writes_times and tokens.no_timestamps is not None:
            never.append(tokens.no_timestamps)
        elif tokens.timestamps_begin is not None:
            never += range(tokens.timestamps_begin, vocab_size)
        self._never = torch.tensor(never, dtype=torch.long).to(device)
        self._never_first = torch.tensor(tokens.suppressed_first, dtype=torch.long).to(device)
        self._ids = torch.arange(vocab_size, device=device)

    def allowed(self, written: Sequence[int]) -> Allowed:
        """What may follow the tokens ``written`` so far in a window."""
        begin, last = self._begin, self._vocab_size - 1
        if not self.writes_times:
            return Allowed(0, begin, last, not written)
        if not written:
            return Allowed(begin, begin, min(self._last_initial, last), True)
        text_from, times_from, times_to = 0, begin, last
        after_time = written[-1] >= begin
        after_pair = len(written) < 2 or written[-2] >= begin
        if after_time and after_pair:
            times_to = begin - 1
        elif after_time:
            text_from = self._end
        latest = next((token for token in reversed(written) if token >= begin), None)
        if latest is not None:
            # A segment's end may be the next one's beginning, but no segment is empty.
            times_from = latest if after_time and not after_pair else latest + 1
        return Allowed(text_from, times_from, times_to, False)

    def apply(self, logits: Tensor, rows: Sequence[Allowed]) -> None:
        """Sets the logits (n, vocab_size) float32 of all other tokens to minus infinity."""
        nothing = float("-inf")
        if len(self._never):
            logits.index_fill_(1, self._never, nothing)
        first = [index for index, row in enumerate(rows) if row.is_first]
        if first and len(self._never_first):
            at = to_device(torch.tensor(first), logits.device)
            logits[at[:, None], self._never_first[None]] = nothing
        if not self.writes_times:
            return
        bounds = to_device(torch.tensor([row[:3] for row in rows]), logits.device)
        text_from, times_from, times_to = bounds.T[:, :, None]
        ids, is_time = self._ids, self._ids >= self._begin
        barred = torch.where(is_time, (ids < times_from) | (ids > times_to), ids < text_from)
        logits.masked_fill_(barred, nothing)
        times = logits[:, self._begin :].logsumexp(dim=-1)
        likeliest = logits[:, : self._begin].amax(dim=-1)
        logits.masked_fill_((times > likeliest)[:, None] & ~is_time, nothing)
