"""The end of a request: what decides that a token is the last."""

from __future__ import annotations

from sglang_omni.engines.request import EngineRequest, FinishReason


class IterationController:
    """Appends tokens to requests and decides which of them end a request.

    Args:
        eos_token_ids: The model's own end tokens.
    """

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos = frozenset(eos_token_ids)

    def advance(self, request: EngineRequest, token: int) -> FinishReason | None:
        """Takes the request's next token. Returns why the request ends with it, None if it goes on.

        If a grammar lets no token of the vocabulary follow, the request has a ``failure``.
        """
        request.output_token_ids.append(token)
        if request.history is not None:
            request.history.add(token)
        sampling = request.sampling
        reason: FinishReason | None = None
        ends = token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos)
        grammar = request.grammar
        if grammar is not None and not grammar.accept(token):
            request.failure = grammar.dead_end(len(request.output_token_ids))
            return "abort"
        # An end token is no text: the detokenizer does not see it.
        if (
            ends
            or (request.ends is not None and request.ends())
            or (request.detokenizer is not None and request.detokenizer.feed([token]))
            or (grammar is not None and grammar.is_over)
        ):
            reason = "stop"
        elif len(request.output_token_ids) >= request.max_new_tokens:
            reason = "length"
        if reason is not None and request.detokenizer is not None:
            request.detokenizer.finish()
        return reason
