"""The bodies of ``/tokenize`` and ``/detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from sglang_omni.serve.models.content import ChatMessage
from sglang_omni.serve.models.fields import ApiModel, Name, OnlyFalse, OnlyTrue, TokenId, at_most
from sglang_omni.serve.models.tools import Tools


class TokenizeRequest(ApiModel):
    """A prompt, or messages that the model's chat template makes one of."""

    model: Name | None = None
    """A served name; the first one if left out."""
    prompt: str | None = None
    """A text; this or ``messages``."""
    messages: Annotated[list[ChatMessage], at_most(4096, least=1)] | None = None
    """A conversation, which the model's chat template makes a prompt of."""
    add_special_tokens: bool | None = None
    """True if the tokenizer's own start and end tokens are added: by default to a prompt, and
    not to messages, whose template writes them."""
    parse_special_tokens: bool = False
    """True if control tokens spelled in the prompt are read as such."""
    return_token_strs: bool = False
    """True if the answer has the tokens as the vocabulary spells them."""
    chat_template_kwargs: dict[Name, Any] | None = None
    """Further variables of the chat template."""
    tools: Tools | None = None
    """Functions that the chat template writes into the prompt."""
    add_generation_prompt: OnlyTrue = None
    continue_final_message: OnlyFalse = None


class DetokenizeRequest(ApiModel):
    model: Name | None = None
    """A served name; the first one if left out."""
    tokens: Annotated[list[TokenId], at_most(2**20)]
    """The token ids."""
