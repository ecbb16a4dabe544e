"""The feedback strategy of models that make speech frame by frame, over what a family's decoders compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from sglang_omni.model_runner.code_predictor import Choose
from sglang_omni.model_runner.cuda_graphs import GraphedStep, batch_size_for, recorder_for
from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackModel, FeedbackSink, FeedbackWorker
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.frames.draws import draw_codes, draw_row
from sglang_omni.models.frames.state import FramePrompt, FrameState


class FrameDecoder(Protocol):
    """What a family computes of a frame, beside its decoder over time. Stateless, on ``device``.

    Attributes:
        num_code_groups: G, the codes of a frame.
        hidden_size: Of the decoder over time.
        end_code: A frame that has this code in all groups but perhaps the last ends the speech, and is no
            sound if it has it in all; None if a token ends it.
        end_token: The token that ends the speech and has no frame; None if a frame ends it.
    """

    device: torch.device
    dtype: torch.dtype
    num_code_groups: int
    hidden_size: int
    end_code: int | None
    end_token: int | None

    def text_rows(self, tokens: Tensor) -> Tensor:
        """Input rows (n, hidden_size) of text tokens (n,)."""
        ...

    def frame_rows(self, codes: Tensor) -> Tensor:
        """Input rows (n, hidden_size) of frames (n, G)."""
        ...

    def first_code(self, token: int) -> int:
        """The first code that a token of the decoder over time stands for."""
        ...

    def complete(self, hidden: Tensor, first_codes: Tensor, choose: Choose | None) -> Tensor:
        """Frames (B, G) int64 with these first codes (B,).

        Args:
            hidden: (B, hidden_size), from which the first codes were chosen.
            choose: None for the likeliest codes.
        """
        ...


class FrameStrategy:
    """A ``FeedbackStrategy`` over ``FrameState``s.

    Args:
        filters_first: How residual codes are drawn, as of ``RequestSampling``.
    """

    def __init__(self, decoder: FrameDecoder, *, filters_first: bool = False) -> None:
        self._decoder = decoder
        self._filters_first = filters_first
        self._device = decoder.device
        self._likeliest = GraphedStep("the decoder of a frame", self._device, self._complete)
        self._drawn = GraphedStep("the decoder of a frame, with draws,", self._device, self._complete)

    def record_graphs(self, max_running_requests: int, *, cuda_graph: bool = True) -> None:
        """On a GPU, records the CUDA graphs of frames of up to ``max_running_requests`` requests at once.

        Called before the first request. If they cannot be recorded, a warning says why, and all goes on.
        """
        recorder = recorder_for(self._device, cuda_graph=cuda_graph)
        if recorder is None:
            return
        count, decoder = batch_size_for(max_running_requests), self._decoder
        with torch.inference_mode(False), torch.no_grad():
            hidden = torch.zeros(count, decoder.hidden_size, dtype=decoder.dtype, device=self._device)
            for step, temperature in ((self._likeliest, 0.0), (self._drawn, 1.0)):
                state = FrameState(FramePrompt([]), RequestSampling(temperature=temperature))
                given = self._given([0] * count, [state] * count).to(self._device)
                if not step.record(recorder, (hidden, given)):
                    return

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> None:
        tp_worker.model.feedback.input_rows += [self._span_rows(span) for span in requests]

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        rows = [state_of(span).row(span.start) for span in requests]
        if all(isinstance(row, Tensor) and row.device == self._device for row in rows):
            frames = torch.stack(cast(list[Tensor], rows))
            model.feedback.input_rows.append(self._decoder.frame_rows(frames))
        else:
            model.feedback.input_rows += [self._span_rows(span) for span in requests]

    def _span_rows(self, span: SequenceSpan) -> Tensor:
        """Input rows of a span that may have text, and frames that are on the host."""
        state = state_of(span)
        rows = [state.row(place) for place in range(span.start, span.start + span.num_tokens)]
        # The rows of frames are replaced.
        tokens = torch.tensor([row if isinstance(row, int) else 0 for row in rows])
        embeds = self._decoder.text_rows(self.upload(tokens))
        for here in (True, False):
            places = [i for i, row in enumerate(rows) if isinstance(row, Tensor) and self._has(row) is here]
            if places:
                frames = torch.stack([cast(Tensor, rows[i]) for i in places])
                codes = self._decoder.frame_rows(self.upload(frames))
                embeds.index_copy_(0, self.upload(torch.tensor(places)), codes)
        return embeds

    def _has(self, frame: Tensor) -> bool:
        return frame.device == self._device

    def upload(self, numbers: Tensor) -> Tensor:
        """Whole numbers of the host, on the decoder's device."""
        return to_device(numbers, self._device)

    def extract_output(
        self,
        model: FeedbackModel,
        schedule_batch: FeedbackBatch,
        requests: Sequence[SequenceSpan],
        outbox: FeedbackSink,
    ) -> None:
        decoder, hidden, tokens = self._decoder, model.feedback.output_rows, schedule_batch.tokens
        assert hidden is not None
        speaking = [index for index, token in enumerate(tokens) if token != decoder.end_token]
        if not speaking:
            return
        states = [state_of(requests[index]) for index in speaking]
        if len(speaking) < len(requests):
            hidden = hidden.index_select(0, self.upload(torch.tensor(speaking)))
        firsts = [decoder.first_code(tokens[index]) for index in speaking]
        given = self._given(firsts, states)
        (codes,) = (self._likeliest if given.shape[1] == 1 else self._drawn)(hidden, given)
        self.deliver([requests[index] for index in speaking], firsts, hidden, codes, outbox)

    def deliver(
        self,
        spans: Sequence[SequenceSpan],
        first_codes: Sequence[int],
        hidden: Tensor,
        codes: Tensor,
        outbox: FeedbackSink,
    ) -> None:
        """Puts the frames of a step into ``outbox``, except those that end their speech without a sound.

        Args:
            hidden: (B, hidden_size), from which the frames were chosen.
            codes: (B, G) int64, the frames; ``first_codes`` are the first column.
        """
        end = self._decoder.end_code
        sounding: list[int] = []
        for index, (span, first) in enumerate(zip(spans, first_codes, strict=True)):
            # The host waits for a frame only if its first code lets it be the last.
            same = (codes[index] == first).tolist() if first == end else [False]
            state_of(span).is_over = all(same[:-1]) and len(same) > 1
            if not all(same):
                sounding.append(index)
        if not sounding:
            return
        if len(sounding) < len(spans):
            codes = codes.index_select(0, self.upload(torch.tensor(sounding)))
        outbox.put([spans[index] for index in sounding], codes)

    def _given(self, first_codes: Sequence[int], states: Sequence[FrameState]) -> Tensor:
        """(B, 1) float64, first codes; if any sequence draws, with rows of ``draw_codes`` behind them."""
        if all(state.sampling.temperature == 0.0 for state in states):
            return torch.tensor([[float(code)] for code in first_codes], dtype=torch.float64)
        draws = [[state.draw() for _ in range(1, self._decoder.num_code_groups)] for state in states]
        rows = [
            [float(code), *draw_row(state.sampling, uniforms)]
            for code, state, uniforms in zip(first_codes, states, draws, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def _complete(self, hidden: Tensor, given: Tensor) -> tuple[Tensor]:
        choose = None
        if given.shape[1] > 1:
            choose = draw_codes(given[:, 1:], filters_first=self._filters_first)
        return (self._decoder.complete(hidden, given[:, 0].long(), choose),)


def state_of(span: SequenceSpan) -> FrameState:
    """The state of a span's sequence."""
    return cast(FrameState, span.state)
