"""A thinker's media: rows of a prompt that are images, video or audio instead of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.sequence import SequenceSpan


@dataclass(eq=False)
class ThinkerState:
    """The media of a prompt as input of the thinker, and their hidden states as output for the talker.

    H is the thinker's hidden size. Positions are indices into the prompt, ascending.

    Attributes:
        media_positions: (m,) int64, the rows that are media of any kind. Positions stay in host memory, where
            batches are laid out.
        media_embeds: (m, H), the embeddings that replace the placeholders'.
        visual_positions: (v,) int64, the media rows that are images or video.
        deepstack: (v, H) each. ``deepstack[k]`` is added to the visual rows after layer k (DeepStack,
            arXiv:2406.04334).
        wants_hidden: True if ``media_hidden`` is wanted.
        wants_rows: True if ``rows`` are wanted, of a decoder that captures all.
        media_hidden: Output, (m, H): ``hidden_states[capture_layer]`` (transformers' numbering) of the media
            rows, set by the time of the first token.
        rows: Output, (n, H) each: ``hidden_states[capture_layer]`` of the sequence's tokens whose successors
            are known, from where ``take_rows`` left off.
        num_rows: How many of these tokens there are.
    """

    media_positions: Tensor
    media_embeds: Tensor
    visual_positions: Tensor
    deepstack: tuple[Tensor, ...] = ()
    wants_hidden: bool = False
    media_hidden: Tensor | None = None
    wants_rows: bool = False
    rows: list[Tensor] = field(default_factory=list)
    num_rows: int = 0

    def __post_init__(self) -> None:
        count, visual = len(self.media_positions), len(self.visual_positions)
        if len(self.media_embeds) != count or any(len(level) != visual for level in self.deepstack):
            raise ValueError(
                f"{count} media rows with {len(self.media_embeds)} embeddings, {visual} visual rows with "
                f"{[len(level) for level in self.deepstack]} deepstack rows: the numbers must be equal"
            )
        self.media_positions, self.visual_positions = self.media_positions.cpu(), self.visual_positions.cpu()
        self.media_end = int(self.media_positions[-1]) + 1 if count else 0

    def is_ready(self, num_tokens: int) -> bool:
        return True

    def add_rows(self, rows: Tensor) -> None:
        """Adds the rows (n, H) of the next tokens."""
        self.rows.append(rows)
        self.num_rows += len(rows)

    def take_rows(self) -> list[Tensor]:
        """The rows since the last call."""
        rows, self.rows = self.rows, []
        return rows


class Deepstack(NamedTuple):
    """``levels[k]`` (n, H) is added to ``rows`` (n,) of a batch's hidden states after layer k."""

    rows: Tensor
    levels: tuple[Tensor, ...]


def has_media(spans: Sequence[SequenceSpan]) -> bool:
    """True if a span may hold media rows."""
    return any(True for _ in _with_media(spans))


def merge_media(hidden: Tensor, spans: Sequence[SequenceSpan]) -> None:
    """Writes media rows into a batch's input rows (T, H), in place."""
    rows: list[Tensor] = []
    embeds: list[Tensor] = []
    for span, state in _with_media(spans):
        first, last = _inside(state.media_positions, span)
        if first < last:
            rows.append(state.media_positions[first:last] + (span.first_row - span.start))
            embeds.append(state.media_embeds[first:last].to(hidden))
    if rows:
        hidden[to_device(torch.cat(rows), hidden.device)] = torch.cat(embeds)


def deepstack_of(spans: Sequence[SequenceSpan]) -> Deepstack | None:
    """The additions to the batch's visual rows; None if it has none.

    All sequences of a batch must have the same number of levels, as encoders of one model give.
    """
    rows: list[Tensor] = []
    levels: list[tuple[Tensor, ...]] = []
    for span, state in _with_media(spans):
        first, last = _inside(state.visual_positions, span)
        if first < last and state.deepstack:
            rows.append(state.visual_positions[first:last] + (span.first_row - span.start))
            levels.append(tuple(level[first:last] for level in state.deepstack))
    if not rows:
        return None
    return Deepstack(torch.cat(rows), tuple(_joined(level) for level in zip(*levels, strict=True)))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One tensor, on the GPU if any of the parts is: a request's rows may have come as a copy on the host."""
    device = next((part.device for part in parts if part.is_cuda), parts[0].device)
    return torch.cat([part.to(device, non_blocking=True) for part in parts])


def captures_due(spans: Sequence[SequenceSpan]) -> Iterator[tuple[int, ThinkerState]]:
    """Index and state of the spans that complete a sequence's media, if its hidden rows are wanted."""
    for index, span in enumerate(spans):
        state = span.state
        if (
            isinstance(state, ThinkerState)
            and state.wants_hidden
            and state.media_hidden is None
            and span.start + span.num_tokens >= state.media_end
        ):
            yield index, state


def rows_due(spans: Sequence[SequenceSpan]) -> Iterator[tuple[int, ThinkerState, int, int]]:
    """Index and state of the spans that sample, if their rows are wanted; and the first row that is due and
    the one after the last. What is computed again, after a preemption, is not due again."""
    for index, span in enumerate(spans):
        state = span.state
        end = span.start + span.num_tokens
        if isinstance(state, ThinkerState) and state.wants_rows and span.samples and state.num_rows < end:
            yield index, state, state.num_rows, end


def _with_media(spans: Sequence[SequenceSpan]) -> Iterator[tuple[SequenceSpan, ThinkerState]]:
    for span in spans:
        if isinstance(span.state, ThinkerState) and span.start < span.state.media_end:
            yield span, span.state


def _inside(positions: Tensor, span: SequenceSpan) -> tuple[int, int]:
    bounds = torch.tensor([span.start, span.start + span.num_tokens])
    first, last = torch.searchsorted(positions, bounds).tolist()
    return first, last
