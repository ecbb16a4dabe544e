"""The strategy of Qwen2.5-Omni's talker: its input rows, of text, hidden states and codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackModel, FeedbackSink, FeedbackWorker
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint, SpeechTokens
from sglang_omni.models.qwen2_5_omni.components.shapes import talker_config
from sglang_omni.models.qwen2_5_omni.components.talker_state import Qwen25TalkerState


class Qwen25TalkerWeights(NamedTuple):
    """The talker's weights, except those of its decoder. E is the thinker's hidden size.

    Attributes:
        thinker_embed: (thinker's vocabulary, E) in the stored dtype.
        embed: (talker's vocabulary, E).
        projection: (talker's hidden size, E), with ``bias`` (talker's hidden size,).
    """

    thinker_embed: Tensor
    embed: Tensor
    projection: Tensor
    bias: Tensor


class Qwen25TalkerStrategy:
    """A ``FeedbackStrategy`` over ``Qwen25TalkerState``s.

    Rows are computed from the state at each call, so that prompts in chunks, and requests computed again
    after a preemption, need nothing else.
    """

    def __init__(self, weights: Qwen25TalkerWeights, tokens: SpeechTokens) -> None:
        self._weights = weights
        self._tokens = tokens
        self._device = weights.embed.device
        self._after_text = self._embed_text([tokens.text_eos, tokens.text_pad]).unbind()

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Qwen25OmniCheckpoint, dtype: torch.dtype, device: str = "cpu"
    ) -> Qwen25TalkerStrategy:
        """Loads the talker's weights except its decoder's, and maps the thinker's embeddings from the file.

        Args:
            dtype: Of the loaded weights.
            device: The decoder's device.

        Raises:
            FileNotFoundError, ValueError: The checkpoint has no talker, or a tensor is missing or misshapen.
        """
        tokens = checkpoint.require_talker()
        config = talker_config(checkpoint)
        text = checkpoint.thinker_config["text_config"]
        width, vocab_size = int(text["hidden_size"]), int(text["vocab_size"])
        if config.embedding_size != width:
            raise ValueError(
                f"{checkpoint.path}: the talker's embedding_size is {config.embedding_size}, the thinker's "
                f"hidden_size {width}: they are added, and must be equal"
            )
        prefix = "talker.thinker_to_talker_proj."
        reader = Checkpoint(checkpoint.path, dtype, prefix, device=device)
        embed = reader.take("talker.model.embed_tokens.weight", (config.vocab_size, width))
        projection = reader.take(f"{prefix}weight", (config.hidden_size, width))
        bias = reader.take(f"{prefix}bias", (config.hidden_size,))
        reader.finish()
        # In the stored dtype: the checkpoint's largest table stays a mapped file, of which few rows are read.
        name = "thinker.model.embed_tokens.weight"
        table = Checkpoint(checkpoint.path, None, name).take(name, (vocab_size, width))
        return cls(Qwen25TalkerWeights(table, embed, projection, bias), tokens)

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> None:
        tp_worker.model.feedback.input_rows.append(self._rows(requests))

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        model.feedback.input_rows.append(self._rows(requests))

    def extract_output(
        self,
        model: FeedbackModel,
        schedule_batch: FeedbackBatch,
        requests: Sequence[SequenceSpan],
        outbox: FeedbackSink,
    ) -> None:
        """A step's output is its token alone."""

    def _rows(self, spans: Sequence[SequenceSpan]) -> Tensor:
        """Input rows (n, talker's hidden size) of prompts and codes."""
        rows: list[Tensor] = []
        places: list[tuple[Qwen25TalkerState, int]] = []
        for span in spans:
            state = _state(span)
            boundary, stop = state.num_prompt_rows, span.start + span.num_tokens
            if span.start < boundary:
                rows += self._of_codes(places)
                places = []
                rows.append(self._of_prompt(state, span.start, min(stop, boundary)))
            places += [(state, i) for i in range(max(span.start, boundary) - boundary, stop - boundary)]
        rows += self._of_codes(places)
        joined = rows[0] if len(rows) == 1 else torch.cat(rows)
        return linear(joined, self._weights.projection, self._weights.bias)

    def _of_prompt(self, state: Qwen25TalkerState, start: int, stop: int) -> Tensor:
        length = len(state.prompt_ids)
        parts: list[Tensor] = []
        if start < length:
            end = min(stop, length)
            assert state.prompt_rows is not None
            is_text = to_device(state.is_text[start:end].unsqueeze(1), self._device)
            heard = to_device(state.prompt_rows[start:end], self._device)
            told = self._embed_text(state.prompt_ids[start:end].tolist())
            parts.append(heard.to(told.dtype) + told * is_text)
        if start <= length < stop:
            begin = self._embed_text([state.voice_bos])
            parts.append(begin + self._embed_codes([self._tokens.pad]))
        if stop > length + 1:
            first = self._reply_row(state, 0).unsqueeze(0)
            parts.append(first + self._embed_codes([self._tokens.bos]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _of_codes(self, places: Sequence[tuple[Qwen25TalkerState, int]]) -> list[Tensor]:
        """The rows of the codes at ``places``, each with its text; nothing if there are none."""
        if not places:
            return []
        codes = self._embed_codes([state.codes[index] for state, index in places])
        return [codes + torch.stack([self._reply_row(state, index + 1) for state, index in places])]

    def _reply_row(self, state: Qwen25TalkerState, index: int) -> Tensor:
        beyond = index - state.num_reply
        if beyond >= 0:
            return self._after_text[min(beyond, 1)]
        known = len(state.reply_rows)
        if index >= known:
            # All new text at once: it is usually ahead of speech.
            token_ids, hidden = state.reply(known, state.num_reply)
            told = self._embed_text(token_ids)
            rows = to_device(torch.stack(hidden), self._device).to(told.dtype) + told
            state.reply_rows += rows.unbind()
        return state.reply_rows[index]

    def _embed_text(self, token_ids: Sequence[int]) -> Tensor:
        rows = embedding(torch.tensor(token_ids), self._weights.thinker_embed)
        return to_device(rows, self._device).to(self._weights.projection.dtype)

    def _embed_codes(self, codes: Sequence[int]) -> Tensor:
        return embedding(to_device(torch.tensor(codes), self._device), self._weights.embed)


def _state(span: SequenceSpan) -> Qwen25TalkerState:
    return cast(Qwen25TalkerState, span.state)
