"""What the states of all talkers' sequences share: the answer's text so far, and the rows made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class TalkerState(ABC):
    """A talker's sequence: the rows of its prompt, P of them, then one row a step.

    Row ``P + i`` is what step ``i`` made and token ``i + 1`` of the answer, after the text's end one end
    marker, then padding. The answer's last token is never spoken, so a token counts only once the next one,
    or the end, has come.

    Attributes:
        text_rows: (hidden size,) each, the rows of the answer's tokens used so far.
        text_ended: True once the thinker's answer is complete.
    """

    def __init__(self) -> None:
        self.text_rows: list[Tensor] = []
        self.text_ended = False

    @property
    @abstractmethod
    def num_prompt_rows(self) -> int:
        """P."""

    @property
    @abstractmethod
    def num_text(self) -> int:
        """The number of the answer's tokens that are known to be spoken."""

    @property
    def is_silent(self) -> bool:
        """True if the answer is complete and its only token is its end, so that nothing is spoken."""
        return self.text_ended and self.num_text == 0

    def end_text(self) -> None:
        """The thinker's answer is complete."""
        self.text_ended = True

    def is_ready(self, num_tokens: int) -> bool:
        if self.num_text == 0:
            return False
        return self.text_ended or num_tokens - self.num_prompt_rows < self.num_text
