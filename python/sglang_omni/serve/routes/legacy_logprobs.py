"""Log-probabilities as ``/v1/completions`` has them: four parallel lists."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from sglang_omni.generation.fields import TokenLogprob


class LegacyLogprobs:
    """Writes the tokens of one text, whole or in parts, and counts their places in it.

    Args:
        begins_before: Characters of the tokens before the text begins: a tokenizer puts a start token before
            a prompt. Such tokens begin at 0 in the answer.
    """

    def __init__(self, begins_before: int = 0) -> None:
        self._offset = -max(0, begins_before)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`` of the next tokens.

        ``text_offset`` is where in the text a token begins, in characters. A token is also among its
        ``top_logprobs``, which are null if its own probability is not known.
        """
        fields: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            fields["tokens"].append(token.token)
            fields["token_logprobs"].append(token.logprob)
            fields["top_logprobs"].append(_top(token))
            fields["text_offset"].append(max(0, self._offset))
            # A character may be made of several tokens.
            self._offset += len(self._decoder.decode(_bytes(token)))
        return fields


def text_of(tokens: Iterable[TokenLogprob]) -> str:
    """The text that tokens spell."""
    return b"".join(map(_bytes, tokens)).decode(errors="replace")


def _bytes(token: TokenLogprob) -> bytes:
    return token.token_bytes or token.token.encode()


def _top(token: TokenLogprob) -> dict[str, float | None] | None:
    if token.logprob is None:
        return None
    return {other.token: other.logprob for other in token.top} | {token.token: token.logprob}
