"""The body of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from sglang_omni.serve.models.constraints import ConstraintFields
from sglang_omni.serve.models.fields import (
    Count,
    ExtensionFields,
    LogitBias,
    Name,
    OnlyEmptyText,
    SamplingFields,
    TokenId,
    at_most,
)
from sglang_omni.serve.models.options import StreamOptions


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


# Of one request, to all its prompts together.
MOST_ANSWERS = 128
Answers = Annotated[int, Field(ge=1, le=MOST_ANSWERS)]
Logprobs = Annotated[int, Field(ge=0, le=20)]


class CompletionRequest(SamplingFields, ConstraintFields, ExtensionFields):
    """A prompt to continue, or several."""

    model: Name | None = None
    """A served name; the first one if left out."""
    prompt: Prompt
    """A text, texts, token ids, or lists of them; each is continued by itself."""
    parse_special_tokens: bool = False
    """True if control tokens spelled in the prompt are read as such."""
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """The most tokens of each answer; 0 only with ``echo``, for the prompt's log-probabilities alone."""
    stream: bool = False
    """True if the answer comes as server-sent events while it is made."""
    stream_options: StreamOptions | None = None
    """What a stream has besides the answer; only with ``stream``."""
    stream_interval: Count = 1
    """How many tokens an event of a stream has, at least. The first one comes at once."""
    user: Name | None = None
    """Names the session; no effect on the answer."""
    n: Answers = 1
    """How many answers are given for each prompt."""
    best_of: Answers | None = None
    """How many answers are written, of which the ``n`` likeliest by their mean log-probability are
    given."""
    echo: bool = False
    """True if the answer begins with its prompt."""
    logprobs: Logprobs | None = None
    """Log-probabilities of the tokens, and of so many of the likeliest at each place."""
    logit_bias: LogitBias | None = None
    """Added to the logits of tokens, by token id as text."""

    suffix: OnlyEmptyText = None
