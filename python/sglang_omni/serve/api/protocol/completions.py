"""The body of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from sglang_omni.serve.api.fields import (
    Count,
    ExtensionFields,
    Name,
    OnlyEmptyDict,
    OnlyEmptyText,
    OnlyFalse,
    OnlyNone,
    OnlyOne,
    SamplingFields,
    TokenId,
    at_most,
)
from sglang_omni.serve.api.protocol.options import StreamOptions


def _prompt_tag(prompt: Any) -> str | None:
    if isinstance(prompt, str):
        return "§text"
    if not isinstance(prompt, list):
        return None
    first = prompt[0] if prompt else 0
    return "§texts" if isinstance(first, str) else "§lists" if isinstance(first, list) else "§ids"


TokenIds = Annotated[list[TokenId], at_most(2**20, least=1)]
_Several = at_most(128, least=1)
Prompt = Annotated[
    Annotated[str, Tag("§text"), Field(min_length=1)]
    | Annotated[list[Annotated[str, Field(min_length=1)]], Tag("§texts"), _Several]
    | Annotated[TokenIds, Tag("§ids")]
    | Annotated[list[TokenIds], Tag("§lists"), _Several],
    Discriminator(
        _prompt_tag,
        custom_error_type="prompt_type",
        custom_error_message="must be a string, a list of strings, token ids, or a list of token id lists",
    ),
]


class CompletionRequest(SamplingFields, ExtensionFields):
    model: Name | None = None
    prompt: Prompt
    parse_special_tokens: bool = False
    max_tokens: Count | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Name | None = None

    n: OnlyOne = 1
    best_of: OnlyOne = None
    echo: OnlyFalse = None
    logprobs: OnlyNone = None
    suffix: OnlyEmptyText = None
    logit_bias: OnlyEmptyDict = None
