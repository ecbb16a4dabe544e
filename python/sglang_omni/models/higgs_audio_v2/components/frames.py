"""The embeddings and heads of Higgs Audio v2: input rows of text and of codes, and a row's codes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from sglang_omni.model_runner.code_predictor import Choose
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.frames.tables import EmbeddedFrames
from sglang_omni.models.higgs_audio_v2.components.checkpoint import HEAD, HiggsCheckpoint

_TEXT = "model.embed_tokens.weight"
_CODES = "model.embed_audio_tokens.embed_audio_tokens.weight"


class HiggsFrames(EmbeddedFrames):
    """A ``DelayedDecoder``. A row's input is the sum of its codes' embeddings; one head chooses all codes."""

    # A row of the pattern ends the speech.
    end_code: int | None = None

    def __init__(self, checkpoint: HiggsCheckpoint, dtype: torch.dtype, device: str) -> None:
        """
        Args:
            dtype: Of weights and computation.
            device: ``"cpu"`` or ``"cuda:N"``, as the decoder's.

        Raises:
            FileNotFoundError, ValueError: A tensor is missing or misshapen.
        """
        groups, size = checkpoint.pattern.num_code_groups, checkpoint.decoder.vocab_size
        hidden = checkpoint.decoder.hidden_size
        reader = Checkpoint(checkpoint.path, dtype, device=device)
        text_embed = reader.take(_TEXT, (checkpoint.text_vocab_size, hidden))
        super().__init__(text_embed, reader.take(_CODES, (groups * size, hidden)), groups, device)
        self._head = reader.take(HEAD, (groups * size, hidden))
        self._size = size

    def complete(self, hidden: Tensor, first_codes: Tensor, choose: Choose | None) -> Tensor:
        logits = linear(hidden, self._head[self._size :]).unflatten(-1, (-1, self._size))
        if choose is None:
            others = logits.float().argmax(dim=-1)
        else:
            others = torch.stack(
                [choose(each, group) for group, each in enumerate(logits.unbind(dim=1), start=1)], dim=1
            )
        return torch.cat((first_codes.unsqueeze(1), others), dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self._head).unflatten(-1, (-1, self._size))
