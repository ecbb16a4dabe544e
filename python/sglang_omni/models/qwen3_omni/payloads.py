"""The ``data`` of a stream between stages that only Qwen3-Omni has."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class ThinkerText(TypedDict):
    """thinker -> talker, a stream: new tokens of the answer's content.

    Attributes:
        token_ids: As they were sampled; at last also the answer's last token, which is not spoken.
        media_hidden: (m, H), the thinker's hidden states at the placeholders of media, in the first item of a
            prompt with media; None in other items.
    """

    token_ids: list[int]
    media_hidden: Tensor | None
