"""A request of ours as SGLang's scheduler sees it."""

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
    """SGLang schedules it and keeps its cache; what its tokens mean is decided as in ``OmniEngine``.

    Its input ids are the ids that the prefix cache compares. Models that know media look the tokens up in
    ``request``.
    """

    to_finish: BaseFinishReason | None

    def __init__(self, request: EngineRequest, controller: IterationController, vocab_size: int) -> None:
        sampling = SamplingParams(max_new_tokens=request.max_new_tokens, temperature=0.0)
        sampling.normalize(None)
        # SGLang matches ids by prefix, so these have one length.
        rid = f"{next(_serial):016x}"
        super().__init__(
            rid,
            "",
            array("q", request.key_token_ids or request.prompt_token_ids),
            sampling,
            vocab_size=vocab_size,
            # Nobody else's key begins like this.
            extra_key=None if request.cacheable else rid,
        )
        if not request.cacheable:
            self.skip_radix_cache_insert = True
        self.request = request
        # Whether the last step gave it a token.
        self.took_token = False
        self._controller = controller

    @property
    def is_ready(self) -> bool:
        """Whether the inputs of all its tokens are there, so that it can be computed on."""
        return self.request.is_ready(self.request.num_tokens)

    @property
    def samples(self) -> bool:
        """Whether the step that it is in reaches its end, so that a token is chosen."""
        return self.inflight_middle_chunks <= 0

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

    def set_aborted(self) -> None:
        """Leaves every batch when SGLang plans the next one. Its KV has to be given back by the caller."""
        self.finished_reason = FINISH_ABORT()
