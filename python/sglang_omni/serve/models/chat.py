"""The body of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sglang_omni.serve.models.completions import Answers, Logprobs
from sglang_omni.serve.models.constraints import ConstraintFields
from sglang_omni.serve.models.content import ChatMessage
from sglang_omni.serve.models.fields import (
    ApiModel,
    Count,
    ExtensionFields,
    Granularities,
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
    VoiceName,
    at_most,
)
from sglang_omni.serve.models.options import StreamOptions
from sglang_omni.serve.models.tools import ToolFields


def _no_repeats(modalities: list[str]) -> list[str]:
    if len(set(modalities)) < len(modalities):
        raise ValueError(f"names {modalities[0]!r} twice")
    return modalities


Modalities = Annotated[list[Literal["text", "audio"]], at_most(2, least=1), AfterValidator(_no_repeats)]


class AudioOptions(ApiModel):
    """How spoken output sounds and is encoded."""

    voice: VoiceName | None = None
    """One of the names in ``/v1/audio/voices``, or OpenAI's ``{"id": name}``; the default voice if not."""
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16", "pcm"] | None = None
    """How the sound is encoded: ``wav`` by default, ``pcm16`` in a stream."""
    timestamp_granularities: Granularities | None = None
    """Which times come with the sound: of ``word`` or ``sentence`` the finer one that the model knows."""


Media = Annotated[list[str], at_most(1024)]


class ChatCompletionRequest(SamplingFields, ConstraintFields, ToolFields, ExtensionFields):
    """A conversation to answer."""

    model: Name | None = None
    """A served name; the first one if left out."""
    messages: Annotated[list[ChatMessage], at_most(4096, least=1)]
    """The conversation so far, oldest message first."""
    max_tokens: Count | None = None
    """The most tokens of the answer's text; by default the rest of the context."""
    max_completion_tokens: Count | None = None
    """Another name of ``max_tokens``; both may be given if they are equal."""
    stream: bool = False
    """True if the answer comes as server-sent events while it is made."""
    stream_options: StreamOptions | None = None
    """What a stream has besides the answer; only with ``stream``."""
    stream_interval: Count = 1
    """How many tokens an event of a stream has, at least. The first one comes at once."""
    modalities: Modalities | None = None
    """What the answer is: text, or text and speech. Text by default."""
    audio: AudioOptions | None = None
    """How the speech of the answer sounds and is encoded."""

    # Media beside the messages, which join the last user turn.
    images: Media | None = None
    """URLs of pictures; they join the last user message, before its text."""
    audios: Media | None = None
    """URLs of recordings, likewise."""
    videos: Media | None = None
    """URLs of videos, likewise."""
    use_audio_in_video: bool = False
    """True if the sound of videos is heard too."""
    talker_temperature: Temperature | None = None
    """``temperature`` of the stage that makes speech."""
    talker_top_p: TopP | None = None
    """``top_p`` of the stage that makes speech."""
    talker_top_k: TopK | None = None
    """``top_k`` of the stage that makes speech."""
    talker_repetition_penalty: RepetitionPenalty | None = None
    """``repetition_penalty`` of the stage that makes speech."""
    talker_max_new_tokens: Count | None = None
    """The most frames of speech."""
    # Adds the answer's token ids (vLLM's name for it), and the codes of its speech.
    return_token_ids: bool = False
    """True if the answer has its token ids (vLLM's name for it), and the codes of its speech."""
    n: Answers = 1
    """How many answers are written."""
    logprobs: bool | None = None
    """True if each token of the answer comes with its log-probability."""
    top_logprobs: Logprobs | None = None
    """How many of the likeliest tokens at each place are reported; only with ``logprobs``."""
    logit_bias: LogitBias | None = None
    """Added to the logits of tokens, by token id as text."""
    # For chat templates that have a place for it.
    reasoning_effort: Name | None = None
    """A word for chat templates that have a place for it."""
    # vLLM's: further variables of the chat template, and whether the answer is a new turn.
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    add_generation_prompt: bool | None = None
    """False begins no new turn of the assistant."""
    continue_final_message: bool = False
    """True if the answer goes on with the last message, which is an assistant's."""
    # SGLang's and vLLM's: reasoning is always sent, as it comes, and apart from the content.
    separate_reasoning: OnlyTrue = None
    stream_reasoning: OnlyTrue = None
    include_reasoning: OnlyTrue = None

    # Of no effect on the answer.
    user: Name | None = None
    """Names the session, if ``prompt_cache_key`` does not; no effect on the answer."""
    metadata: Annotated[dict[Name, str], Field(max_length=64)] | None = None
    """Accepted, no effect."""
    safety_identifier: Name | None = None
    """Accepted, no effect."""
    prompt_cache_key: Name | None = None
    """Names the session, whose requests go to the worker that has their cache."""
    prompt_cache_retention: Name | None = None
    """Accepted, no effect."""

    service_tier: OnlyDefaultTier = None
    store: OnlyFalse = None
    prediction: OnlyNone = None
    verbosity: OnlyNone = None
    web_search_options: OnlyNone = None
