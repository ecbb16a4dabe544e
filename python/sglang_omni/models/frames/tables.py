"""Input rows of models whose frames are sums of the embeddings of their codes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding


class EmbeddedFrames:
    """What of a ``FrameDecoder`` follows from two tables.

    Args:
        text_embed: (vocab_size, hidden_size), of text tokens.
        code_embed: (G * size, hidden_size), of the codes of each group.
        groups: G, the codes of a frame.
        device: Of the decoder over time.
    """

    end_token: int | None = None

    def __init__(self, text_embed: Tensor, code_embed: Tensor, groups: int, device: str) -> None:
        self.device, self.dtype = torch.device(device), code_embed.dtype
        self.num_code_groups, self.hidden_size = groups, code_embed.shape[1]
        self._text_embed, self._code_embed = text_embed, code_embed
        self._offsets = (torch.arange(groups) * (len(code_embed) // groups)).to(self.device)

    def text_rows(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self._text_embed)

    def frame_rows(self, codes: Tensor) -> Tensor:
        return embedding(codes + self._offsets, self._code_embed).sum(dim=1)

    def first_code(self, token: int) -> int:
        return token
