"""The ``data`` of a stream between stages that only Qwen2.5-Omni has."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class Qwen25ThinkerOutput(TypedDict):
    """thinker -> talker, a stream: tokens of the answer's content, and their hidden states as they come.

    Attributes:
        token_ids: n tokens; usually one.
        rows: (m, H), the thinker's last hidden states of the next tokens, first of all T tokens of the
            prompt: of one token after the other, none before the token itself. The answer's last token has
            none.
    """

    token_ids: list[int]
    rows: Tensor
