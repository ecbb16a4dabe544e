"""Dual autoregression: a slow decoder chooses each frame's first code, a fast decoder the others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.code_predictor import Choose, CodePredictor
from sglang_omni.models.fish_s2_pro.components.checkpoint import FAST, SLOW, FishS2Checkpoint
from sglang_omni.models.frames.strategy import FrameStrategy

# Of all codes, as in ``logits_to_probs`` of the authors' ``fish_speech/models/text2semantic/inference.py``.
FILTERS_FIRST = True


class FishFrames:
    """A ``FrameDecoder``.

    A text token's input row is its embedding. A frame's input row is the sum of the embeddings of its token
    and of its codes, divided by sqrt(G + 1).
    """

    end_code: int | None = None

    def __init__(self, checkpoint: FishS2Checkpoint, dtype: torch.dtype, device: str = "cpu") -> None:
        """
        Args:
            dtype: Of weights and computation.
            device: ``"cpu"`` or ``"cuda:N"``, as the slow decoder's.

        Raises:
            FileNotFoundError, ValueError: A tensor is missing, misshapen or unknown.
        """
        config, reader = checkpoint.fast, checkpoint.open_fast(dtype, device)
        size, hidden, groups = config.vocab_size, config.hidden_size, config.num_code_groups
        self.device, self.dtype = torch.device(device), dtype
        self.num_code_groups, self.hidden_size = groups, hidden
        self.end_token: int | None = checkpoint.end
        self._start = checkpoint.semantic_start
        # The embeddings of each group's codes in turn.
        self._code_embed = reader.take(f"{FAST}codebook_embeddings.weight", (groups * size, hidden))
        self._offsets = (torch.arange(groups) * size).to(self.device)
        self._scale = (groups + 1) ** -0.5
        self._fast_embed = reader.take(f"{FAST}embeddings.weight", (size, hidden))
        # All groups share these tables. Some ids of the vocabulary are not codes.
        head = reader.take(f"{FAST}output.weight", (size, hidden))[: checkpoint.codebook_size]
        self._fast = CodePredictor.from_checkpoint(
            config, reader, FAST.rstrip("."), [self._fast_embed] * (groups - 2), [head] * (groups - 1)
        )
        reader.finish()
        slow = checkpoint.open_slow(checkpoint.path, dtype, SLOW, device=device)
        self._text_embed = slow.take(f"{SLOW}embeddings.weight", (checkpoint.slow.vocab_size, hidden))

    def text_rows(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self._text_embed)

    def frame_rows(self, codes: Tensor) -> Tensor:
        tokens = embedding(codes[:, 0] + self._start, self._text_embed)
        return (tokens + embedding(codes + self._offsets, self._code_embed).sum(dim=1)) * self._scale

    def first_code(self, token: int) -> int:
        return token - self._start

    def complete(self, hidden: Tensor, first_codes: Tensor, choose: Choose | None) -> Tensor:
        return self._fast.predict(hidden, first_codes, embedding(first_codes, self._fast_embed), choose)


def dual_ar_strategy(checkpoint: FishS2Checkpoint, dtype: torch.dtype, device: str = "cpu") -> FrameStrategy:
    """Frames by the fast decoder; arguments and errors are those of ``FishFrames``."""
    return FrameStrategy(FishFrames(checkpoint, dtype, device), filters_first=FILTERS_FIRST)


def dual_ar_decoder(checkpoint: FishS2Checkpoint, strategy: FrameStrategy) -> DecoderSpec:
    """The slow decoder: from text and frames to the next frame's first code, as a token."""
    spoken = {checkpoint.end, *range(checkpoint.semantic_start, checkpoint.semantic_end + 1)}
    return DecoderSpec(
        model_path=checkpoint.path,
        config=checkpoint.slow,
        weights=WeightNames(
            embed_tokens=f"{SLOW}embeddings.weight",
            layers=f"{SLOW}layers",
            norm=f"{SLOW}norm.weight",
            lm_head="text_model.lm_head.weight",
        ),
        component=SLOW,
        strategy=strategy,
        suppress_token_ids=tuple(i for i in range(checkpoint.slow.vocab_size) if i not in spoken),
        open_checkpoint=checkpoint.open_slow,
    )
