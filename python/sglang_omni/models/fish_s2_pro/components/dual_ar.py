"""Dual autoregression: a slow decoder chooses each frame's first code, a fast decoder the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.code_predictor import CodePredictor
from sglang_omni.model_runner.cuda_graphs import GraphedStep, batch_size_for, recorder_for
from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackModel, FeedbackSink, FeedbackWorker
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.fish_s2_pro.components.checkpoint import FAST, SLOW, FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.components.draws import draw_codes, draw_row
from sglang_omni.models.fish_s2_pro.components.dual_ar_state import DualARState


class FishDualARStrategy:
    """A ``FeedbackStrategy`` over ``DualARState``s.

    A text token's input row is its embedding. A frame's input row is the sum of the embeddings of its token
    and of its codes, divided by sqrt(G + 1).

    Args:
        text_embed: (text vocabulary, hidden size).
        code_embed: (G * fast vocabulary, hidden size), the embeddings of each group's codes in turn.
        fast_embed: (fast vocabulary, hidden size), the fast decoder's embeddings for all groups.
        fast: The fast decoder.
    """

    def __init__(
        self,
        checkpoint: FishS2Checkpoint,
        text_embed: Tensor,
        code_embed: Tensor,
        fast_embed: Tensor,
        fast: CodePredictor,
    ) -> None:
        groups = checkpoint.fast.num_code_groups
        self._start, self._end = checkpoint.semantic_start, checkpoint.end
        self._codebook_size = checkpoint.codebook_size
        self._text_embed = text_embed
        self._code_embed = code_embed
        self._fast_embed = fast_embed
        self._fast = fast
        self._device = text_embed.device
        self._offsets = (torch.arange(groups) * checkpoint.fast.vocab_size).to(self._device)
        self._scale = (groups + 1) ** -0.5
        self._likeliest = GraphedStep("the fast decoder", self._device, self._complete)
        self._drawn = GraphedStep("the fast decoder, with draws,", self._device, self._complete)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: FishS2Checkpoint, dtype: torch.dtype, device: str = "cpu"
    ) -> FishDualARStrategy:
        """
        Args:
            device: ``"cpu"`` or ``"cuda:N"``, as the slow decoder's.

        Raises:
            FileNotFoundError, ValueError: A tensor is missing, misshapen or unknown.
        """
        config, reader = checkpoint.fast, checkpoint.open_fast(dtype, device)
        size, hidden, groups = config.vocab_size, config.hidden_size, config.num_code_groups
        code_embed = reader.take(f"{FAST}codebook_embeddings.weight", (groups * size, hidden))
        fast_embed = reader.take(f"{FAST}embeddings.weight", (size, hidden))
        # All groups share these tables. Some ids of the vocabulary are not codes.
        head = reader.take(f"{FAST}output.weight", (size, hidden))[: checkpoint.codebook_size]
        fast = CodePredictor.from_checkpoint(
            config, reader, FAST.rstrip("."), [fast_embed] * (groups - 2), [head] * (groups - 1)
        )
        reader.finish()
        slow = checkpoint.open_slow(checkpoint.path, dtype, SLOW, device=device)
        text_embed = slow.take(
            f"{SLOW}embeddings.weight", (checkpoint.slow.vocab_size, checkpoint.slow.hidden_size)
        )
        return cls(checkpoint, text_embed, code_embed, fast_embed, fast)

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> None:
        tp_worker.model.feedback.input_rows.append(self._rows(requests))

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        frames = [_state(span).frame(span.start) for span in requests]
        if any(frame is None for frame in frames):
            model.feedback.input_rows.append(self._rows(requests))
        else:
            model.feedback.input_rows.append(self._frame_rows(self._stack(cast(list[Tensor], frames))))

    def _rows(self, spans: Sequence[SequenceSpan]) -> Tensor:
        """Input rows of spans that may have text."""
        rows = []
        for span in spans:
            state = _state(span)
            places = range(span.start, span.start + span.num_tokens)
            frames = [state.frame(i) for i in places]
            # The rows of frames are replaced.
            tokens = [0 if frames[i - span.start] is not None else state.text_token(i) for i in places]
            embeds = embedding(self._upload(torch.tensor(tokens)), self._text_embed)
            framed = [index for index, frame in enumerate(frames) if frame is not None]
            if framed:
                codes = self._stack([frame for frame in frames if frame is not None])
                embeds.index_copy_(0, self._upload(torch.tensor(framed)), self._frame_rows(codes))
            rows.append(embeds)
        return torch.cat(rows)

    def _stack(self, frames: Sequence[Tensor]) -> Tensor:
        """(n, G), on the device, of a voice's frames, which are on the host, and then spoken ones."""
        spoken = next((i for i, frame in enumerate(frames) if frame.device == self._device), len(frames))
        parts = [self._upload(torch.stack(list(frames[:spoken])))] if spoken else []
        if spoken < len(frames):
            parts.append(torch.stack(list(frames[spoken:])))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _upload(self, numbers: Tensor) -> Tensor:
        return to_device(numbers, self._device)

    def extract_output(
        self,
        model: FeedbackModel,
        schedule_batch: FeedbackBatch,
        requests: Sequence[SequenceSpan],
        outbox: FeedbackSink,
    ) -> None:
        hidden, tokens = model.feedback.output_rows, schedule_batch.tokens
        assert hidden is not None
        speaking = [index for index, token in enumerate(tokens) if token != self._end]
        if not speaking:
            return
        states = [_state(requests[index]) for index in speaking]
        if len(speaking) < len(requests):
            hidden = hidden.index_select(0, self._upload(torch.tensor(speaking)))
        given = self._given([tokens[index] - self._start for index in speaking], states)
        (codes,) = (self._likeliest if given.shape[1] == 1 else self._drawn)(hidden, given)
        for index, frame in zip(speaking, codes.unbind(), strict=True):
            outbox.put(requests[index], frame)

    def record_graphs(self, max_running_requests: int, *, cuda_graph: bool = True) -> None:
        """On a GPU, records the CUDA graphs of frames of up to ``max_running_requests`` requests at once.

        Called before the first request. If they cannot be recorded, a warning says why, and all goes on.
        """
        recorder = recorder_for(self._device, cuda_graph=cuda_graph)
        if recorder is None:
            return
        count = batch_size_for(max_running_requests)
        greedy, drawn = RequestSampling(temperature=0.0), RequestSampling()
        with torch.inference_mode(False), torch.no_grad():
            hidden = self._fast_embed[:1].repeat(count, 1)
            state = DualARState([], greedy)
            given = self._given([0] * count, [state] * count)
            if self._likeliest.record(recorder, (hidden, given.to(self._device))):
                state = DualARState([], drawn)
                given = self._given([0] * count, [state] * count)
                self._drawn.record(recorder, (hidden, given.to(self._device)))

    def _given(self, first_codes: Sequence[int], states: Sequence[DualARState]) -> Tensor:
        """(B, 1) float64, first codes; if any sequence draws, with rows of ``draw_codes`` behind them."""
        if all(state.sampling.temperature == 0.0 for state in states):
            return torch.tensor([[float(code)] for code in first_codes], dtype=torch.float64)
        draws = [[state.draw() for _ in range(1, len(self._offsets))] for state in states]
        rows = [
            [float(code), *draw_row(state.sampling, uniforms)]
            for code, state, uniforms in zip(first_codes, states, draws, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def _complete(self, hidden: Tensor, given: Tensor) -> tuple[Tensor]:
        first = given[:, 0].long()
        choose = draw_codes(given[:, 1:]) if given.shape[1] > 1 else None
        return (self._fast.predict(hidden, first, embedding(first, self._fast_embed), choose),)

    def _frame_rows(self, codes: Tensor) -> Tensor:
        """Input rows (n, hidden size) of frames (n, G)."""
        tokens = embedding(codes[:, 0] + self._start, self._text_embed)
        return (tokens + embedding(codes + self._offsets, self._code_embed).sum(dim=1)) * self._scale


def dual_ar_decoder(checkpoint: FishS2Checkpoint, strategy: FishDualARStrategy) -> DecoderSpec:
    """The slow decoder: from text and frames to the next frame's first code, as a token."""
    spoken = {checkpoint.end, *range(checkpoint.semantic_start, checkpoint.semantic_end + 1)}
    return DecoderSpec(
        model_path=checkpoint.path,
        config=checkpoint.slow,
        weights=WeightNames(
            embed_tokens=f"{SLOW}embeddings.weight",
            layers=f"{SLOW}layers",
            norm=f"{SLOW}norm.weight",
            lm_head="text_model.lm_head.weight",
        ),
        component=SLOW,
        strategy=strategy,
        suppress_token_ids=tuple(i for i in range(checkpoint.slow.vocab_size) if i not in spoken),
        open_checkpoint=checkpoint.open_slow,
    )


def _state(span: SequenceSpan) -> DualARState:
    return cast(DualARState, span.state)
