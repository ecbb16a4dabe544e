"""The ``data`` of a stream between stages that only Qwen2.5-Omni has."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class ThinkerRows(TypedDict):
    """thinker -> talker, a stream: new tokens of the answer, and hidden states of the tokens before them.

    Attributes:
        token_ids: n tokens; usually one.
        rows: (m, H), the thinker's last hidden states: in the first item of all T tokens of the prompt and
            of the answer's tokens but the last, in later ones of the last token before and of the new ones
            but the last. Empty if there is no new token.
    """

    token_ids: list[int]
    rows: Tensor
