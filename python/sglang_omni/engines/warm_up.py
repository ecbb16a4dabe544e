"""The steps of an engine before its first request, which compile and load what a GPU's first steps need."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_omni.engines.base import Engine, RequestT, TokenEngine
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling

# Tokens of prompts; the longest is a full step.
_PROMPTS = (33, 300, 1 << 30)
# Far more than the few tokens or items of a warm-up take.
_MOST_STEPS = 100


def warm_up(engine: Engine[RequestT], requests: Sequence[RequestT]) -> None:
    """Computes requests of no caller, one after another, so that each step has as many tokens as its request.

    Afterwards the engine is as it was: empty caches, counters at zero.

    Ranks of one engine must call it with the same requests.

    Raises:
        Exception: Whatever a step raises, or the failure of a request.
    """
    try:
        for request in requests:
            # The same draws on all ranks, so that they end together.
            request.set_default_seed(0)
            engine.add(request)
            for _ in range(_MOST_STEPS):
                if not engine.has_work:
                    break
                engine.step()
    finally:
        for request in requests:
            engine.abort(request.request_id)
        engine.flush_cache()
        engine.reset_counters()
    for request in requests:
        if request.failure is not None:
            raise request.failure


def text_requests(engine: TokenEngine) -> list[EngineRequest]:
    """A prompt of one token and an answer of two, which is a prefill and a decode, and longer prompts.

    Experts' kernels are compiled for some counts of tokens, up to those of a full step.
    """
    lengths = [1, *sorted({min(length, engine.longest_step) for length in _PROMPTS})]
    return [
        EngineRequest(
            f"warm-up-{number}",
            [0] * length,
            RequestSampling(temperature=0.0, max_new_tokens=1 if number else 2, ignore_eos=True),
            cacheable=False,
        )
        for number, length in enumerate(lengths)
    ]
