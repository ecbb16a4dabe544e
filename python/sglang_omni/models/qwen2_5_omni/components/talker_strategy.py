"""The strategy of Qwen2.5-Omni's talker: its input rows, of text, hidden states and codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from sglang_omni.model_runner.feedback import FeedbackBatch, FeedbackModel, FeedbackSink
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.omni.talker_strategy import TalkerStrategy, thinker_embeddings
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


class Qwen25TalkerStrategy(TalkerStrategy[Qwen25TalkerState]):
    """A ``TalkerStrategy`` whose rows are of the thinker's hidden size, and projected at last."""

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
        width = int(checkpoint.thinker_config["text_config"]["hidden_size"])
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
        table = thinker_embeddings(checkpoint, width)
        return cls(Qwen25TalkerWeights(table, embed, projection, bias), tokens)

    def extract_output(
        self,
        model: FeedbackModel,
        schedule_batch: FeedbackBatch,
        requests: Sequence[SequenceSpan],
        outbox: FeedbackSink,
    ) -> None:
        """A step's output is its token alone."""

    def _rows(self, spans: Sequence[SequenceSpan]) -> Tensor:
        return linear(super()._rows(spans), self._weights.projection, self._weights.bias)

    def _prompt_rows(self, state: Qwen25TalkerState, start: int, stop: int) -> Tensor:
        length = len(state.prompt_ids)
        parts: list[Tensor] = []
        if start < length:
            end = min(stop, length)
            assert state.prompt_rows is not None
            is_text = to_device(state.is_text[start:end].unsqueeze(1), self._device)
            hidden = to_device(state.prompt_rows[start:end], self._device)
            text = self._embed_text(state.prompt_ids[start:end].tolist())
            parts.append(hidden.to(text.dtype) + text * is_text)
        if start <= length < stop:
            begin = self._embed_text([state.voice_bos])
            parts.append(begin + self._embed_codes([self._tokens.pad]))
        if stop > length + 1:
            first = self._text_row(state, 0).unsqueeze(0)
            parts.append(first + self._embed_codes([self._tokens.bos]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _step_rows(self, places: Sequence[tuple[Qwen25TalkerState, int]]) -> Tensor:
        return self._embed_codes([state.codes[index] for state, index in places])

    def _new_text_rows(self, state: Qwen25TalkerState, start: int, stop: int) -> Tensor:
        token_ids, hidden = state.reply(start, stop)
        text = self._embed_text(token_ids)
        return to_device(torch.stack(hidden), self._device).to(text.dtype) + text

    def _embed_text(self, token_ids: Sequence[int]) -> Tensor:
        rows = embedding(torch.tensor(token_ids), self._weights.thinker_embed)
        return to_device(rows, self._device).to(self._weights.projection.dtype)

    def _embed_codes(self, codes: Sequence[int]) -> Tensor:
        return embedding(to_device(torch.tensor(codes), self._device), self._weights.embed)
