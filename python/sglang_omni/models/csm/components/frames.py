"""CSM's embeddings and depth decoder: input rows of text and frames, and a frame's codes after the first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from sglang_omni.model_runner.code_predictor import Choose, CodePredictor
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.csm.components.checkpoint import CsmCheckpoint
from sglang_omni.models.frames.earlier import SpokenTurn
from sglang_omni.models.frames.speaking import Speech
from sglang_omni.models.frames.state import FramePrompt
from sglang_omni.models.frames.tables import EmbeddedFrames

_BACKBONE = "backbone_model.embed_tokens.embed_audio_tokens.weight"
_DEPTH = "depth_decoder.model.embed_tokens.weight"


class CsmFrames(EmbeddedFrames):
    """A ``FrameDecoder``. The row of a frame is the sum of the embeddings of its codes."""

    def __init__(self, checkpoint: CsmCheckpoint, dtype: torch.dtype, device: str) -> None:
        """
        Args:
            dtype: Of weights and computation.
            device: ``"cpu"`` or ``"cuda:N"``, as the backbone's.

        Raises:
            FileNotFoundError, ValueError: A tensor is missing, misshapen or unknown.
        """
        depth, backbone = checkpoint.depth, checkpoint.backbone
        groups, size, hidden = depth.num_code_groups, backbone.vocab_size, backbone.hidden_size
        text_embed = Checkpoint(checkpoint.path, dtype, "embed_text_tokens.", device=device).take(
            "embed_text_tokens.weight", (checkpoint.text_vocab_size, hidden)
        )
        reader = Checkpoint(checkpoint.path, dtype, "depth_decoder.", device=device)
        # A checkpoint whose decoders share the table has it once.
        tables = [name for name in (_BACKBONE, _DEPTH) if name in reader]
        super().__init__(text_embed, reader.take(tables[0], (groups * size, hidden)), groups, device)
        self.end_code: int | None = checkpoint.end_code
        own = reader.take(tables[-1], (groups * size, hidden))
        weight = reader.take(
            "depth_decoder.model.inputs_embeds_projector.weight", (depth.hidden_size, hidden)
        )
        self._projector = weight
        # Embeddings are projected here, once for all frames.
        projected = [linear(part.float(), weight.float()).to(dtype) for part in own.split(size)]
        self._first_embed = projected[0]
        heads = reader.take("depth_decoder.codebooks_head.weight", (groups - 1, depth.hidden_size, size))
        self._depth = CodePredictor.from_checkpoint(
            depth,
            reader,
            "depth_decoder.model",
            projected[1:-1],
            [head.t()[: checkpoint.num_codes].contiguous() for head in heads],
        )
        reader.finish()

    def complete(self, hidden: Tensor, first_codes: Tensor, choose: Choose | None) -> Tensor:
        first = embedding(first_codes, self._first_embed)
        return self._depth.predict(linear(hidden, self._projector), first_codes, first, choose)

    def prompt(self, speech: Speech, turns: Sequence[SpokenTurn], text: list[int]) -> FramePrompt:
        """Each turn's text, its frames and a frame of end codes; then the text to speak."""
        end = torch.full_like(self._offsets, self.end_code or 0)
        rows: list[int | Tensor] = []
        for turn in turns:
            rows += [*turn.text, *turn.frames.unbind(), end]
        return FramePrompt([*rows, *text])
