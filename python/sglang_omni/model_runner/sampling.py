"""The sampler: chooses the next token of every sequence from logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.demands import TokenDemands, add_biases, apply_masks
from sglang_omni.model_runner.filters import Filters, has_filter, invert
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.token_scores import ScoreRequest, StepScores

# Filters look at this many of the likeliest tokens first, and at all tokens only if those do not suffice.
CANDIDATES = 512


class TokenHistory:
    """The tokens of a sequence, for its penalties. One token is added in each step.

    Its tensors are on the device of the logits, and follow its tokens when these are next penalised.

    Attributes:
        new_prompt, new_output: Tokens that the tensors do not have yet.
        seen: (vocab_size,) bool, the tokens of prompt and output.
        counts: (vocab_size,) float32, how often each token is in the output.
    """

    def __init__(self, vocab_size: int, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self.new_prompt = list(prompt)
        self.new_output = list(output)
        self.seen: Tensor | None = None
        self.counts: Tensor | None = None

    def add(self, token: int) -> None:
        self.new_output.append(token)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """``seen`` and ``counts``, without the new tokens."""
        if self.seen is None or self.counts is None:
            self.seen = torch.zeros(self._vocab_size, dtype=torch.bool, device=device)
            self.counts = torch.zeros(self._vocab_size, dtype=torch.float32, device=device)
        return self.seen, self.counts


@dataclass(frozen=True)
class RepetitionRule:
    """Repetition-aware sampling, as Fish Audio S2-Pro's authors do it: it keeps speech from looping.

    A token that was drawn, and is among the last ones of the output, is drawn again, once.

    Attributes:
        window: So many tokens of the output are looked at.
        temperature, top_p: Of the second draw; the request's other parameters stay.
    """

    window: int
    temperature: float
    top_p: float

    def redraw(self, params: RequestSampling, uniform: float, output: Sequence[int]) -> Redraw:
        again = replace(params, temperature=self.temperature, top_p=self.top_p)
        return Redraw(again, uniform, tuple(output[-self.window :]))


class Redraw(NamedTuple):
    """The second draw of one step; it counts if the first gave one of the ``recent`` tokens."""

    params: RequestSampling
    uniform: float
    recent: tuple[int, ...]


class SamplingRow(NamedTuple):
    """The sampler's input for one sequence.

    Attributes:
        uniform: The one random number in [0, 1) that the choice may use. The request's own generator draws
            it, so the choice does not depend on the batch.
        history: Set if there are penalties.
        demands: Set if the request asks for more than sampling.
        redraw: Set if the token may be drawn twice.
    """

    params: RequestSampling
    uniform: float
    history: TokenHistory | None = None
    demands: TokenDemands | None = None
    redraw: Redraw | None = None


def next_tokens(
    logits: Tensor, suppressed: Tensor, rows: Sequence[SamplingRow]
) -> tuple[Tensor, StepScores | None]:
    """The next tokens (S,) int64 as ``sample`` chooses them, and their scores, if any are wanted.

    Args:
        logits: (S, vocab_size) float32, the model's; they are changed.
        suppressed: Tokens that are never chosen, on the device of ``logits``.
        rows: One for each row of ``logits``.
    """
    asked = [(index, row.demands) for index, row in enumerate(rows) if row.demands is not None]
    scores = _scores(logits, asked) if asked else None
    if len(suppressed):
        logits.index_fill_(1, suppressed, float("-inf"))
    if asked:
        add_biases(logits, asked)
        apply_masks(logits, asked)
    tokens = sample(logits, rows)
    redraws = [(index, row.redraw) for index, row in enumerate(rows) if row.redraw and row.redraw.recent]
    if redraws:
        tokens = _draw_again(logits, tokens, redraws)
    if scores is not None:
        scores.choose(tokens)
    return tokens, scores


def _draw_again(logits: Tensor, tokens: Tensor, redraws: Sequence[tuple[int, Redraw]]) -> Tensor:
    """``tokens``, with a second draw in the place of those that repeat a recent one. The host reads none."""
    longest = max(len(redraw.recent) for _, redraw in redraws)
    # -1 is no token.
    packed = torch.tensor(
        [[index, *redraw.recent, *[-1] * (longest - len(redraw.recent))] for index, redraw in redraws]
    )
    index, recent = to_device(packed, logits.device).tensor_split([1], dim=1)
    index = index.squeeze(1)
    second = sample(
        logits.index_select(0, index), [SamplingRow(redraw.params, redraw.uniform) for _, redraw in redraws]
    )
    first = tokens.index_select(0, index)
    repeats = (recent == first.unsqueeze(1)).any(dim=1)
    return tokens.index_copy(0, index, torch.where(repeats, second, first))


def _scores(logits: Tensor, asked: Sequence[tuple[int, TokenDemands]]) -> StepScores | None:
    wanted = [
        ScoreRequest(index, each.num_top, each.scores) for index, each in asked if each.num_top is not None
    ]
    return StepScores(logits, wanted) if wanted else None


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """The next tokens (S,) int64, on the device of ``logits`` (S, vocab_size) float32, which are changed.

    The same numbers choose the same tokens on every device, up to the rounding of its arithmetic. On a GPU
    the host waits for nothing: one copy takes all parameters there.
    """
    if logits.device.type != "cpu":
        return sample_unread(logits, rows)
    for index, row in enumerate(rows):
        if row.history is not None:
            _penalise(logits[index], row.params, row.history)
    tokens = logits.argmax(dim=-1)
    drawn = [index for index, row in enumerate(rows) if row.params.temperature > 0.0]
    if drawn:
        tokens[drawn] = _draw(logits[drawn], [rows[index] for index in drawn])
    return tokens


# On a CPU: each row takes its own path, and what was computed decides how far to look.


def _penalise(logits: Tensor, params: RequestSampling, history: TokenHistory) -> None:
    seen, counts = history.on(logits.device)
    if history.new_prompt:
        seen[torch.tensor(history.new_prompt, dtype=torch.long)] = True
        history.new_prompt = []
    for token in history.new_output:
        seen[token] = True
        counts[token] += 1
    history.new_output = []
    if params.repetition_penalty != 1.0:
        penalty = params.repetition_penalty
        scaled = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits.copy_(torch.where(seen, scaled, logits))
    if params.presence_penalty != 0.0:
        logits.sub_((counts > 0).float(), alpha=params.presence_penalty)
    if params.frequency_penalty != 0.0:
        logits.sub_(counts, alpha=params.frequency_penalty)


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """One draw for each row, by inverting the cumulative distribution over tokens."""
    temperatures = torch.tensor([[row.params.temperature] for row in rows], dtype=torch.float32)
    uniforms = torch.tensor([[row.uniform] for row in rows], dtype=torch.float64)
    shifted = _shift(logits)
    filtered = [i for i, row in enumerate(rows) if has_filter(row.params)]
    plain = [i for i, row in enumerate(rows) if not has_filter(row.params)]
    tokens = torch.empty(len(rows), 1, dtype=torch.long)
    if plain:
        tokens[plain] = invert((shifted[plain] / temperatures[plain]).softmax(dim=-1), uniforms[plain])
    if filtered:
        tokens[filtered] = _draw_filtered(
            shifted[filtered], temperatures[filtered], [rows[i].params for i in filtered], uniforms[filtered]
        )
    return tokens.squeeze(1)


def _draw_filtered(
    shifted: Tensor, temperatures: Tensor, params: Sequence[RequestSampling], uniforms: Tensor
) -> Tensor:
    vocab_size = shifted.shape[-1]
    first = torch.tensor([[each.filters_first] for each in params])
    filters = Filters(
        temperatures,
        top_k=torch.tensor([[_top_k(each, vocab_size)] for each in params]),
        top_p=torch.tensor([[each.top_p] for each in params], dtype=torch.float32),
        min_p=torch.tensor([[each.min_p] for each in params], dtype=torch.float32),
        first=first if bool(first.any()) else None,
    )
    seen = filters.seen(shifted, shifted / temperatures)
    log_total = seen.logsumexp(dim=-1, keepdim=True)

    width = min(CANDIDATES, vocab_size)
    while True:
        values, ids = seen.topk(width, dim=-1)
        weights = filters.weights(values, log_total)
        # If the last candidate is kept, tokens beyond the candidates may have to be kept too.
        if width == vocab_size or not bool(((weights[:, -1:] > 0) & (filters.top_k > width)).any()):
            break
        width = vocab_size
    return ids.gather(1, invert(weights, uniforms))


# What both share.


def _shift(logits: Tensor) -> Tensor:
    # Less their maximum, which keeps a very small temperature from overflowing.
    return logits - logits.amax(dim=-1, keepdim=True)


def _top_k(params: RequestSampling, vocab_size: int) -> int:
    return min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size


# On a GPU: all rows take every path that one of them needs, and nothing is read.


def sample_unread(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """``sample`` for a device that the host must not wait for."""
    histories = [(index, row) for index, row in enumerate(rows) if row.history is not None]
    drawn = [row.params for row in rows if row.params.temperature > 0.0]
    if not histories and not drawn:
        return logits.argmax(dim=-1)

    vocab_size = logits.shape[-1]
    # Where in the histories' tensors, joined, the new tokens are, and what each adds to the counts.
    places: list[int] = []
    added: list[float] = []
    for position, (_, row) in enumerate(histories):
        assert row.history is not None
        new = [*row.history.new_prompt, *row.history.new_output]
        places += [position * vocab_size + token for token in new]
        added += [0.0] * len(row.history.new_prompt) + [1.0] * len(row.history.new_output)
    parts: list[Sequence[float]] = [
        [index for index, _ in histories],
        [row.params.repetition_penalty for _, row in histories],
        [row.params.presence_penalty for _, row in histories],
        [row.params.frequency_penalty for _, row in histories],
        places,
        added,
    ]
    if drawn:
        parts += [
            # Rows that are not drawn are divided by 1, and their draws thrown away.
            [row.params.temperature or 1.0 for row in rows],
            [_top_k(row.params, vocab_size) for row in rows],
            [row.params.top_p for row in rows],
            [row.params.min_p for row in rows],
            [row.params.temperature > 0.0 and not has_filter(row.params) for row in rows],
            [row.params.temperature > 0.0 and has_filter(row.params) for row in rows],
            [row.uniform for row in rows],
        ]
    if any(params.filters_first for params in drawn):
        parts.append([row.params.filters_first for row in rows])
    # Doubles hold every index, and round to float32 as the parameters themselves do.
    packed = to_device(torch.tensor([n for part in parts for n in part], dtype=torch.float64), logits.device)
    sizes = [len(part) for part in parts]
    doubles, floats = packed.split(sizes), packed.float().split(sizes)
    if histories:
        _penalise_rows(
            logits,
            [row.history for _, row in histories if row.history is not None],
            index=doubles[0].long(),
            penalties=floats[1:4],
            places=doubles[4].long(),
            added=floats[5],
        )
    tokens = logits.argmax(dim=-1)
    if not drawn:
        return tokens
    first = floats[13] if len(parts) > 13 else None
    return _draw_rows(logits, drawn, floats[6:12], doubles[12], first, tokens)


def _penalise_rows(
    logits: Tensor,
    histories: Sequence[TokenHistory],
    *,
    index: Tensor,
    penalties: Sequence[Tensor],
    places: Tensor,
    added: Tensor,
) -> None:
    repetition, presence, frequency = (penalty.unsqueeze(1) for penalty in penalties)
    tensors = [history.on(logits.device) for history in histories]
    seen = torch.stack([seen for seen, _ in tensors])
    counts = torch.stack([counts for _, counts in tensors])
    seen.view(-1).index_fill_(0, places, True)
    counts.view(-1).scatter_add_(0, places, added)
    for position, history in enumerate(histories):
        history.seen, history.counts = seen[position], counts[position]
        history.new_prompt, history.new_output = [], []

    rows = logits.index_select(0, index)
    scaled = torch.where(rows > 0, rows / repetition, rows * repetition)
    rows = torch.where(seen, scaled, rows) - presence * (counts > 0) - frequency * counts
    logits.index_copy_(0, index, rows)


def _draw_rows(
    logits: Tensor,
    drawn: Sequence[RequestSampling],
    columns: Sequence[Tensor],
    uniforms: Tensor,
    first: Tensor | None,
    tokens: Tensor,
) -> Tensor:
    temperature, top_k, top_p, min_p, is_plain, is_filtered = (column.unsqueeze(1) for column in columns)
    uniforms, tokens = uniforms.unsqueeze(1), tokens.unsqueeze(1)
    shifted = _shift(logits)
    scaled = shifted / temperature
    filtered = [params for params in drawn if has_filter(params)]
    if len(filtered) < len(drawn):
        chosen = invert(scaled.softmax(dim=-1), uniforms)
        tokens = torch.where(is_plain > 0, chosen, tokens)
    if filtered:
        filters = Filters(temperature, top_k, top_p, min_p, None if first is None else first.unsqueeze(1) > 0)
        seen = filters.seen(shifted, scaled)
        vocab_size = logits.shape[-1]
        width = min(CANDIDATES, vocab_size)
        if all(_top_k(params, vocab_size) <= width for params in filtered):
            values, ids = seen.topk(width, dim=-1)
        else:
            # Whether the candidates suffice would have to be read.
            values, ids = seen.sort(dim=-1, descending=True)
        weights = filters.weights(values, seen.logsumexp(dim=-1, keepdim=True))
        tokens = torch.where(is_filtered > 0, ids.gather(1, invert(weights, uniforms)), tokens)
    return tokens.squeeze(1)
