"""The state of an answer being spoken: the thinker's tokens and hidden states so far, and the codes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_omni.models.omni.talker_state import TalkerState

# Rows of the talker's prompt behind the thinker's: the voice's beginning, and the answer's first token.
START_ROWS = 2


class Qwen25TalkerState(TalkerState):
    """A ``TalkerState`` with a row for each token of the thinker's prompt, two to begin with, one a code.

    A row for a token is the thinker's last hidden state of it plus its embedding; of media there is the
    hidden state alone.

    Args:
        prompt_token_ids: The thinker's T tokens.
        media: Tokens that stand for media.
        voice_bos: The thinker's token that begins the voice's text.

    Attributes:
        codes: All codes so far; the engine's list of a request's tokens.
        prompt_rows: (T, thinker hidden size), the thinker's hidden states of its prompt; None until they
            have come.
    """

    def __init__(self, prompt_token_ids: Sequence[int], media: frozenset[int], voice_bos: int) -> None:
        super().__init__()
        ids = torch.tensor(list(prompt_token_ids))
        self.prompt_ids = ids
        self.is_text = torch.isin(ids, torch.tensor(sorted(media)), invert=True)
        self.voice_bos = voice_bos
        self.codes: Sequence[int] = ()
        self.prompt_rows: Tensor | None = None
        self._hidden: list[Tensor] = []
        self._token_ids: list[int] = []

    @property
    def num_prompt_rows(self) -> int:
        return len(self.prompt_ids) + START_ROWS

    @property
    def num_text(self) -> int:
        return len(self._hidden)

    def feed(self, token_ids: Sequence[int], rows: Tensor) -> None:
        """Adds the next tokens of the answer, and the hidden states (n, H) of those before them."""
        self._token_ids += token_ids
        if self.prompt_rows is None and len(rows):
            length = len(self.prompt_ids)
            self.prompt_rows, rows = rows[:length], rows[length:]
        self._hidden += rows.unbind()

    def reply(self, start: int, stop: int) -> tuple[list[int], list[Tensor]]:
        """Tokens of the answer, and their hidden states."""
        return self._token_ids[start:stop], self._hidden[start:stop]
