"""Log-probabilities as SGLang's ``/generate`` tells them: ``[logprob, token id, text or null]`` a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_omni.generation.fields import TokenLogprob


def output_fields(tokens: Sequence[TokenLogprob], top: int, *, texts: bool) -> dict[str, Any]:
    """The fields of ``meta_info`` for an answer's tokens.

    Args:
        top: How many of the likeliest tokens at each place are told; 0 leaves the field out.
        texts: True if tokens have their text.
    """
    fields: dict[str, Any] = {"output_token_logprobs": [_entry(token, texts) for token in tokens]}
    if top:
        fields["output_top_logprobs"] = [_likeliest(token, texts) for token in tokens]
    return fields


def input_fields(tokens: Sequence[TokenLogprob], top: int, *, texts: bool) -> dict[str, Any]:
    """The fields of ``meta_info`` for a prompt's tokens from ``logprob_start_len`` on.

    As in SGLang, the first of them has no log-probability, even if tokens precede it.
    """
    entries = [_entry(token, texts) for token in tokens]
    if entries:
        entries[0][0] = None
    fields: dict[str, Any] = {"input_token_logprobs": entries}
    if top:
        fields["input_top_logprobs"] = [
            _likeliest(token, texts) if index else None for index, token in enumerate(tokens)
        ]
    return fields


def _entry(token: TokenLogprob, texts: bool) -> list[Any]:
    return [token.logprob, token.token_id, token.token if texts else None]


def _likeliest(token: TokenLogprob, texts: bool) -> list[list[Any]]:
    return [_entry(other, texts) for other in token.top]
