"""Admission: which requests an autoregressive engine takes, and how many tokens each may get."""

from __future__ import annotations

from sglang_omni.engines.request import EngineRequest
from sglang_omni.proto import RequestError
from sglang_omni.proto.limits import MAX_PROMPT_LOGPROBS


def admit(
    request: EngineRequest,
    *,
    vocab_size: int,
    context_length: int,
    pool_tokens: int,
    num_positions: int | None = None,
) -> None:
    """Checks a new request and sets its ``max_new_tokens``.

    Args:
        context_length: The most tokens of prompt and output together.
        pool_tokens: The most tokens of one request that the KV pool holds, as it was built.
        num_positions: Length of the engine's table of rotary positions, beyond which it must not read; None
            if it has none.

    Raises:
        RequestError: The request can never run: an empty prompt, unknown tokens, or a prompt too long.
    """
    request.sampling.validate()
    prompt = request.prompt_token_ids
    if not prompt:
        raise RequestError(
            "the prompt is empty: it must have at least one token", param="prompt", code="invalid_value"
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise RequestError(
            f"prompt_token_ids must lie between 0 and {vocab_size - 1}, got {min(prompt)} to {max(prompt)}",
            param="prompt_token_ids",
            code="invalid_value",
        )
    _check_demands(request, vocab_size)
    # The last token of an answer is never fed back, so it needs no room in the pool.
    limit = min(context_length, pool_tokens + 1)
    if len(prompt) >= limit:
        what = "the model's context" if limit == context_length else "the engine's KV cache"
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, but {what} holds {limit}, at least one of them for "
            f"the answer: shorten the prompt to {limit - 1} tokens",
            param="prompt",
            code="context_length_exceeded",
        )
    room = limit - len(prompt)
    if num_positions is not None and request.positions is not None:
        # With videos, positions run ahead of tokens.
        following = len(prompt) + request.positions.delta
        if following > num_positions:
            raise RequestError(
                f"the positions of the prompt go up to {following - 1}, but the model knows {num_positions}",
                param="prompt",
                code="context_length_exceeded",
            )
        room = min(room, num_positions - following + 1)
    wanted = request.sampling.max_new_tokens
    request.max_new_tokens = room if wanted is None else min(wanted, room)


def _check_demands(request: EngineRequest, vocab_size: int) -> None:
    sampling, prompt = request.sampling, request.prompt_token_ids
    if sampling.logit_bias and max(token for token, _ in sampling.logit_bias) >= vocab_size:
        raise RequestError(
            f"logit_bias must be of token ids from 0 to {vocab_size - 1}, got "
            f"{max(token for token, _ in sampling.logit_bias)}",
            param="logit_bias",
            code="invalid_value",
        )
    scores = None if sampling.prompt_logprobs is None else len(prompt) * (1 + sampling.prompt_logprobs)
    if scores is not None and scores > MAX_PROMPT_LOGPROBS:
        raise RequestError(
            f"prompt_logprobs: {len(prompt)} tokens with {sampling.prompt_logprobs} alternatives each are "
            f"more than {MAX_PROMPT_LOGPROBS} log-probabilities: ask for fewer, or shorten the prompt",
            param="prompt_logprobs",
            code="invalid_value",
        )


def never_runs(request: EngineRequest, free_tokens: int, pool_tokens: int) -> RuntimeError:
    """The failure of a request that finds no room although no other request is running."""
    more = request.max_new_tokens - len(request.output_token_ids)
    return RuntimeError(
        f"the engine cannot go on with the request: its {request.num_tokens} tokens, and up to {more} more "
        f"of the answer, find no room in the KV cache ({free_tokens} of {pool_tokens} tokens free) though "
        "nothing else is running"
    )
