"""The body of ``/generate``, SGLang's own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from sglang_omni.serve.models.completions import MOST_ANSWERS, Answers, TokenIds
from sglang_omni.serve.models.constraints import GrammarFields
from sglang_omni.serve.models.fields import (
    Count,
    ExtensionFields,
    LogitBias,
    OnlyFalse,
    OnlyTrue,
    OnlyZero,
    RequestId,
    SamplingFields,
    at_most,
)


class GenerateSampling(SamplingFields, GrammarFields):
    """SGLang's ``sampling_params``."""

    max_new_tokens: Count | None = None
    """The most tokens of the answer; by default the rest of the context."""
    n: Answers = 1
    """How many answers are written for the prompt."""
    logit_bias: LogitBias | None = None
    """Added to the logits of tokens, by token id as text."""
    min_new_tokens: OnlyZero = None
    skip_special_tokens: OnlyTrue = True
    spaces_between_special_tokens: OnlyTrue = True
    no_stop_trim: OnlyFalse = None


def _several_tag(value: Any) -> str:
    return "§several" if isinstance(value, list) else "§one"


def _lists_tag(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else None
    return "§several" if isinstance(first, list) else "§one"


_Several = at_most(MOST_ANSWERS, least=1)
Texts = Annotated[
    Annotated[str, Tag("§one"), Field(min_length=1)]
    | Annotated[list[Annotated[str, Field(min_length=1)]], Tag("§several"), _Several],
    Discriminator(_several_tag),
]
InputIds = Annotated[
    Annotated[TokenIds, Tag("§one")] | Annotated[list[TokenIds], Tag("§several"), _Several],
    Discriminator(_lists_tag),
]
Samplings = Annotated[
    Annotated[GenerateSampling, Tag("§one")] | Annotated[list[GenerateSampling], Tag("§several"), _Several],
    Discriminator(_several_tag),
]
Rids = Annotated[
    Annotated[RequestId, Tag("§one")] | Annotated[list[RequestId], Tag("§several"), _Several],
    Discriminator(_several_tag),
]
_Start = Annotated[int, Field(ge=-1, lt=2**31)]
_Top = Annotated[int, Field(ge=0, le=20)]
Flags = Annotated[
    Annotated[bool, Tag("§one")] | Annotated[list[bool], Tag("§several"), _Several],
    Discriminator(_several_tag),
]
Starts = Annotated[
    Annotated[_Start, Tag("§one")] | Annotated[list[_Start], Tag("§several"), _Several],
    Discriminator(_several_tag),
]
Tops = Annotated[
    Annotated[_Top, Tag("§one")] | Annotated[list[_Top], Tag("§several"), _Several],
    Discriminator(_several_tag),
]


class NativeRequest(ExtensionFields):
    """SGLang's own ``/generate``: a text or token ids, or lists of either.

    With several prompts, a field in the plural may be a list with one value for each prompt.
    """

    text: Texts | None = None
    """A prompt, or several; this or ``input_ids``."""
    input_ids: InputIds | None = None
    """The token ids of a prompt, or of several."""
    parse_special_tokens: bool = False
    """True if control tokens spelled in the prompt are read as such."""
    sampling_params: Samplings = Field(default_factory=GenerateSampling)
    """How tokens are drawn: for all prompts, or one object for each."""
    rid: Rids | None = None
    """SGLang's name of ``request_id``; one for each prompt if there are several."""
    stream: bool = False
    """True if the answer comes as server-sent events, each with the text so far."""
    return_logprob: Flags = False
    """True if ``meta_info`` has ``output_token_logprobs``."""
    logprob_start_len: Starts = -1
    """The first token of the prompt that ``input_token_logprobs`` has; -1: none."""
    top_logprobs_num: Tops = 0
    """How many of the likeliest tokens at each place are reported."""
    return_text_in_logprobs: bool = False
    """True if a token's text is sent beside its id."""
