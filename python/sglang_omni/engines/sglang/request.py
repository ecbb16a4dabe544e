"""An engine's request in the form that SGLang's scheduler takes."""

from __future__ import annotations

from array import array
from itertools import count

from sglang.srt.managers.schedule_batch import (
    FINISH_ABORT,
    FINISH_LENGTH,
    FINISH_MATCHED_TOKEN,
    BaseFinishReason,
    Req,
)
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_omni.engines.iteration import IterationController
from sglang_omni.engines.request import EngineRequest

_serial = count()


class ScheduledRequest(Req):
    """SGLang schedules it and keeps its cache; ``IterationController`` decides when it ends.

    Its input ids are those that the prefix cache compares. Models with media read the tokens in ``request``.
    """

    to_finish: BaseFinishReason | None
    return_logprob: bool

    def __init__(
        self,
        request: EngineRequest,
        controller: IterationController,
        vocab_size: int,
        lora_id: str | None = None,
    ) -> None:
        sampling = SamplingParams(max_new_tokens=request.max_new_tokens, temperature=0.0)
        sampling.normalize(None)
        # SGLang matches ids by prefix, so all have the same length.
        rid = f"{next(_serial):016x}"
        super().__init__(
            rid,
            "",
            array("q", request.key_token_ids or request.prompt_token_ids),
            sampling,
            vocab_size=vocab_size,
            # No other request's key begins like this.
            extra_key=None if request.cacheable else rid,
            lora_id=lora_id,
            return_logprob=request.prompt_scores is not None,
            top_logprobs_num=0 if request.prompt_scores is None else request.prompt_scores.num_top,
        )
        # SGLang scores the prompt from this position on; -1 for nothing of it.
        self.logprob_start_len = -1 if request.prompt_scores is None else 0
        if not request.cacheable:
            self.skip_radix_cache_insert = True
        self.request = request
        # True if the last step gave it a token.
        self.took_token = False
        self._controller = controller

    @property
    def is_ready(self) -> bool:
        """True if the inputs of all its tokens have arrived, so that its next step can run."""
        return self.request.is_ready(self.request.num_tokens)

    def update_finish_state(self, new_accepted_len: int = 1) -> None:
        if self.finished():
            return
        request = self.request
        if self.to_finish is not None:
            self.finished_reason, self.to_finish = self.to_finish, None
            request.finish_reason = "abort"
            return
        if not request.output_token_ids:
            request.cached_tokens = self.cached_tokens
        self.took_token = True
        token = self.output_ids[-1]
        request.finish_reason = self._controller.advance(request, token)
        if request.finish_reason == "stop":
            self.finished_reason = FINISH_MATCHED_TOKEN(matched=token)
        elif request.finish_reason == "length":
            self.finished_reason = FINISH_LENGTH(length=len(self.output_ids))
        elif request.finish_reason == "abort":
            self.finished_reason = FINISH_ABORT()

    def take_prompt_scores(self) -> None:
        """Takes the scores of the prompt from SGLang, once it has all of them."""
        scores, found = self.request.prompt_scores, self.logprob
        if not self.return_logprob or scores is None or found.input_token_logprobs_val is None:
            return
        if not scores.complete:
            own = found.input_token_logprobs_val
            tops = zip(
                found.input_top_logprobs_idx or [()] * len(own),
                found.input_top_logprobs_val or [()] * len(own),
                strict=True,
            )
            scores.fill(
                [value for value in own[1:] if value is not None],
                [list(zip(ids or (), values or (), strict=True)) for ids, values in tops][1:],
            )
        # Its next tokens are scored by our sampler, and if it is retracted, the cache may help it again.
        self.return_logprob = False
        self.logprob_start_len = -1

    def set_aborted(self) -> None:
        """Leaves every batch when SGLang plans the next one. The caller must free its KV."""
        self.finished_reason = FINISH_ABORT()
