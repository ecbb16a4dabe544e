"""The bodies of ``/tokenize`` and ``/detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from sglang_omni.serve.api.fields import ApiModel, Name, OnlyFalse, OnlyTrue, TokenId, at_most
from sglang_omni.serve.api.protocol.content import ChatMessage
from sglang_omni.serve.api.protocol.tools import Tools


class TokenizeRequest(ApiModel):
    """A prompt, or messages that the model's chat template makes one of.

    Attributes:
        add_special_tokens: Whether the tokenizer's own start and end tokens are added: by default to a
            prompt, and not to messages, whose template writes them.
        return_token_strs: Whether the answer has the tokens as the vocabulary spells them.
    """

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], at_most(4096, least=1)] | None = None
    add_special_tokens: bool | None = None
    parse_special_tokens: bool = False
    return_token_strs: bool = False
    chat_template_kwargs: dict[Name, Any] | None = None
    tools: Tools | None = None
    add_generation_prompt: OnlyTrue = None
    continue_final_message: OnlyFalse = None


class DetokenizeRequest(ApiModel):
    model: Name | None = None
    tokens: Annotated[list[TokenId], at_most(2**20)]
