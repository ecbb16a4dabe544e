"""The dual_ar stage: passages of a text to requests of its engine, and these to frames of codes."""

from __future__ import annotations

from sglang_omni.engines import EngineRequest
from sglang_omni.model_runner.sampling import RepetitionRule
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.components.dual_ar import FILTERS_FIRST
from sglang_omni.models.fish_s2_pro.components.prompts import FishPrompts
from sglang_omni.models.frames.earlier import FirstAndLast
from sglang_omni.models.frames.speaking import FrameSpeaker, Speech
from sglang_omni.preprocessing.tokenizing import TextTokenizer

# Sampling parameters of a request that sets none.
DEFAULTS = {"temperature": 0.8, "top_p": 0.8, "top_k": 30}
# The authors' own.
_REPETITION = RepetitionRule(window=10, temperature=1.0, top_p=0.9)
# Of earlier passages in a prompt, 71 s.
_EARLIER_FRAMES = 1536


class DualAR(FrameSpeaker):
    """A ``FrameSpeaker`` whose parts are passages. It counts each token of a text and of its speech once.

    Args:
        max_passage_frames: Limit of a passage, if the request has none for the whole.
        pool_tokens: Size of the engine's KV cache; earlier passages take at most a quarter of it.
    """

    def __init__(
        self,
        checkpoint: FishS2Checkpoint,
        tokenizer: TextTokenizer,
        *,
        max_passage_frames: int,
        pool_tokens: int,
    ) -> None:
        room = min(pool_tokens, checkpoint.slow.max_position_embeddings)
        super().__init__(
            "dual_ar",
            FishPrompts(tokenizer),
            DEFAULTS,
            DEFAULTS,
            FirstAndLast(min(_EARLIER_FRAMES, room // 4)),
            filters_first=FILTERS_FIRST,
            repetition=_REPETITION,
            part_tokens=max_passage_frames,
        )

    def _usage(self, speech: Speech, request: EngineRequest) -> tuple[int, int]:
        prompts, spoken = speech.usage
        new = len(speech.waiting[0]) if prompts else len(request.prompt_token_ids)
        return prompts + new, spoken + len(request.output_token_ids)
