"""Qwen3-TTS's embeddings and code predictor: input rows of text and frames, and a frame's other codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from sglang_omni.model_runner.code_predictor import Choose, CodePredictor
from sglang_omni.model_runner.feedback import (
    FeedbackBatch,
    FeedbackModel,
    FeedbackWorker,
    rows_in_order,
)
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.frames.state import FrameState
from sglang_omni.models.frames.strategy import FrameStrategy
from sglang_omni.models.qwen3_tts.components.checkpoint import Qwen3TTSCheckpoint
from sglang_omni.models.qwen3_tts.components.prompts import SPEAKER

_TALKER = "talker."
_PREDICTOR = "talker.code_predictor."


class Qwen3TTSFrames:
    """A ``FrameDecoder``. A row is the sum of the embeddings of its codes, and of its projected text."""

    end_code: int | None = None

    def __init__(self, checkpoint: Qwen3TTSCheckpoint, dtype: torch.dtype, device: str) -> None:
        """
        Args:
            dtype: Of weights and computation.
            device: ``"cpu"`` or ``"cuda:N"``, as the talker's.

        Raises:
            FileNotFoundError, ValueError: A tensor is missing, misshapen or unknown.
        """
        talker, config = checkpoint.talker, checkpoint.predictor
        hidden, groups = talker.hidden_size, config.num_code_groups
        self.device, self.dtype = torch.device(device), dtype
        self.num_code_groups, self.hidden_size = groups, hidden
        self.end_token: int | None = checkpoint.tags.eos
        reader = Checkpoint(checkpoint.path, dtype, _PREDICTOR, device=device)
        names = [f"{_TALKER}model.codec_embedding.weight"]
        names += [f"{_PREDICTOR}model.codec_embedding.{group}.weight" for group in range(groups - 1)]
        sizes = [talker.vocab_size, *[config.vocab_size] * (groups - 1)]
        # The embeddings of the talker's tokens, then of each further group's codes.
        self._code_embed = reader.take_stacked(names, [(size, hidden) for size in sizes])
        self._offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0).to(self.device)
        self._projection = None
        tables = self._code_embed.split(sizes)
        if config.hidden_size != hidden:
            name = f"{_PREDICTOR}small_to_mtp_projection"
            self._projection = (
                reader.take(f"{name}.weight", (config.hidden_size, hidden)),
                reader.take(f"{name}.bias", (config.hidden_size,)),
            )
            # Embeddings are projected here, once for all frames.
            tables = tuple(self._narrowed(table) for table in tables)
        self._first_embed = tables[0]
        heads = [
            reader.take(f"{_PREDICTOR}lm_head.{group}.weight", (config.vocab_size, config.hidden_size))
            for group in range(groups - 1)
        ]
        self._predictor = CodePredictor.from_checkpoint(
            config, reader, f"{_PREDICTOR}model", tables[1:-1], heads
        )
        reader.finish()
        self.text_rows = _TextRows(checkpoint, dtype, device)
        self._pad = checkpoint.text.pad
        self._pad_row = self.text_rows(torch.tensor([self._pad]))

    def frame_rows(self, codes: Tensor) -> Tensor:
        return embedding(codes + self._offsets, self._code_embed).sum(dim=1)

    def spoken_rows(self, codes: Tensor, beside: Sequence[int]) -> Tensor:
        """Input rows (n, hidden_size) of frames (n, G) on the device, and of the text token beside each."""
        if all(token == self._pad for token in beside):
            return self.frame_rows(codes) + self._pad_row
        return self.frame_rows(codes) + self.text_rows(torch.tensor(beside))

    def prompt_rows(self, rows: Tensor, speaker: Tensor | None) -> Tensor:
        """Input rows (n, hidden_size) of a prompt's.

        Args:
            rows: (n, 1 + G) on the host, as ``Qwen3TTSPrompts`` makes them.
            speaker: (hidden_size,), for the row of the voice.
        """
        # Every row has a text token.
        text, codes = rows[:, 0], rows[:, 1:]
        none = codes < 0
        known = to_device(codes.clamp(min=0), self.device)
        embedded = embedding(known + self._offsets, self._code_embed)
        embedded = embedded.masked_fill(to_device(none, self.device).unsqueeze(-1), 0.0).sum(dim=1)
        place = (codes[:, 0] == SPEAKER).nonzero().flatten()
        if len(place) and speaker is not None:
            voice = to_device(speaker, self.device).to(self.dtype).unsqueeze(0)
            embedded.index_copy_(0, to_device(place, self.device), voice)
        return embedded + self.text_rows(text)

    def first_code(self, token: int) -> int:
        return token

    def complete(self, hidden: Tensor, first_codes: Tensor, choose: Choose | None) -> Tensor:
        if self._projection is not None:
            hidden = linear(hidden, *self._projection)
        first = embedding(first_codes, self._first_embed)
        return self._predictor.predict(hidden, first_codes, first, choose)

    def _narrowed(self, table: Tensor) -> Tensor:
        assert self._projection is not None
        weight, bias = self._projection
        return linear(table.float(), weight.float(), bias.float()).to(table.dtype)


class _TextRows:
    """Rows of text tokens, projected to the talker's hidden size.

    The table of embeddings, the largest of the checkpoint, stays a mapped file, of which few rows are read.
    """

    def __init__(self, checkpoint: Qwen3TTSCheckpoint, dtype: torch.dtype, device: str) -> None:
        inner, hidden = checkpoint.text_hidden_size, checkpoint.talker.hidden_size
        name = f"{_TALKER}model.text_embedding.weight"
        table = Checkpoint(checkpoint.path, None, name)
        self._table = table.take(name, (checkpoint.text_vocab_size, inner))
        prefix = f"{_TALKER}text_projection."
        reader = Checkpoint(checkpoint.path, dtype, prefix, device=device)
        self._inner = (
            reader.take(f"{prefix}linear_fc1.weight", (inner, inner)),
            reader.take(f"{prefix}linear_fc1.bias", (inner,)),
        )
        self._outer = (
            reader.take(f"{prefix}linear_fc2.weight", (hidden, inner)),
            reader.take(f"{prefix}linear_fc2.bias", (hidden,)),
        )
        reader.finish()

    def __call__(self, tokens: Tensor) -> Tensor:
        """(n, hidden size) of tokens (n,) on the host."""
        weight = self._inner[0]
        rows = to_device(embedding(tokens, self._table), weight.device).to(weight.dtype)
        return linear(silu(linear(rows, *self._inner)), *self._outer)


class Qwen3TTSStrategy(FrameStrategy):
    """A ``FrameStrategy`` whose frames have a text token beside them."""

    def __init__(self, frames: Qwen3TTSFrames) -> None:
        super().__init__(frames)
        self._frames = frames

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> None:
        tp_worker.model.feedback.input_rows += self._rows(requests)

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        model.feedback.input_rows += self._rows(requests)

    def _rows(self, spans: Sequence[SequenceSpan]) -> list[Tensor]:
        return rows_in_order(spans, lambda state: len(state.prompt.rows), self._prompt, self._spoken)

    def _prompt(self, state: FrameState, start: int, stop: int) -> Tensor:
        rows = cast(Tensor, state.prompt.rows)[start:stop]
        return self._frames.prompt_rows(rows, state.prompt.speaker)

    def _spoken(self, places: Sequence[tuple[FrameState, int]]) -> list[Tensor]:
        """The rows of the frames at ``places``; nothing if there are none."""
        if not places:
            return []
        frames = torch.stack([state.frames[index] for state, index in places])
        return [self._frames.spoken_rows(frames, [state.beside(index) for state, index in places])]
