"""The body of ``/generate``, SGLang's own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sglang_omni.serve.api.fields import (
    Count,
    ExtensionFields,
    OnlyFalse,
    OnlyNone,
    OnlyOne,
    OnlyTrue,
    OnlyZero,
    RequestId,
    SamplingFields,
)
from sglang_omni.serve.api.protocol.completions import TokenIds


class GenerateSampling(SamplingFields):
    """SGLang's ``sampling_params``."""

    max_new_tokens: Count | None = None
    n: OnlyOne = 1
    min_new_tokens: OnlyZero = None
    skip_special_tokens: OnlyTrue = True
    spaces_between_special_tokens: OnlyTrue = True
    no_stop_trim: OnlyFalse = None
    regex: OnlyNone = None
    json_schema: OnlyNone = None
    ebnf: OnlyNone = None


class NativeRequest(ExtensionFields):
    """SGLang's own ``/generate``: one text or one list of token ids."""

    text: Annotated[str, Field(min_length=1)] | None = None
    input_ids: TokenIds | None = None
    parse_special_tokens: bool = False
    sampling_params: GenerateSampling = Field(default_factory=GenerateSampling)
    rid: RequestId | None = None
    stream: bool = False
    return_logprob: OnlyFalse = False
