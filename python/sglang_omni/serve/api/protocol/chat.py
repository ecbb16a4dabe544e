"""The body of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sglang_omni.serve.api.fields import (
    ApiModel,
    Count,
    ExtensionFields,
    LogitBias,
    Name,
    OnlyDefaultTier,
    OnlyFalse,
    OnlyNone,
    OnlyTrue,
    RepetitionPenalty,
    SamplingFields,
    Temperature,
    TopK,
    TopP,
    at_most,
)
from sglang_omni.serve.api.protocol.completions import Answers, Logprobs
from sglang_omni.serve.api.protocol.constraints import ConstraintFields
from sglang_omni.serve.api.protocol.content import ChatMessage
from sglang_omni.serve.api.protocol.options import StreamOptions
from sglang_omni.serve.api.protocol.tools import ToolFields


def _no_repeats(modalities: list[str]) -> list[str]:
    if len(set(modalities)) < len(modalities):
        raise ValueError(f"names {modalities[0]!r} twice")
    return modalities


Modalities = Annotated[list[Literal["text", "audio"]], at_most(2, least=1), AfterValidator(_no_repeats)]


class AudioOptions(ApiModel):
    """How spoken output sounds and is encoded."""

    voice: Name | None = None
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16", "pcm"] | None = None


Media = Annotated[list[str], at_most(1024)]


class ChatCompletionRequest(SamplingFields, ConstraintFields, ToolFields, ExtensionFields):
    model: Name | None = None
    messages: Annotated[list[ChatMessage], at_most(4096, least=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    modalities: Modalities | None = None
    audio: AudioOptions | None = None

    # Media beside the messages, which join the last user turn.
    images: Media | None = None
    audios: Media | None = None
    videos: Media | None = None
    use_audio_in_video: bool = False
    talker_temperature: Temperature | None = None
    talker_top_p: TopP | None = None
    talker_top_k: TopK | None = None
    talker_repetition_penalty: RepetitionPenalty | None = None
    talker_max_new_tokens: Count | None = None
    # Adds the answer's token ids (vLLM's name for it), and the codes of its speech.
    return_token_ids: bool = False
    n: Answers = 1
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    logit_bias: LogitBias | None = None
    # For chat templates that have a place for it.
    reasoning_effort: Name | None = None
    # vLLM's: further variables of the chat template, and whether the answer is a new turn.
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    # SGLang's and vLLM's: reasoning is always told, as it comes, and apart from the content.
    separate_reasoning: OnlyTrue = None
    stream_reasoning: OnlyTrue = None
    include_reasoning: OnlyTrue = None

    # Of no effect on the answer.
    user: Name | None = None
    metadata: Annotated[dict[Name, str], Field(max_length=64)] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None

    service_tier: OnlyDefaultTier = None
    store: OnlyFalse = None
    prediction: OnlyNone = None
    verbosity: OnlyNone = None
    web_search_options: OnlyNone = None
