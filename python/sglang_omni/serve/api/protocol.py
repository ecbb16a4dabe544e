"""Request models of the API: OpenAI's fields and those that users of SGLang expect."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from sglang_omni.serve.api.fields import (
    TAG,
    ApiModel,
    Count,
    ExtensionFields,
    Name,
    OnlyDefaultTier,
    OnlyEmptyDict,
    OnlyEmptyList,
    OnlyEmptyText,
    OnlyFalse,
    OnlyFormFalse,
    OnlyFormZero,
    OnlyNone,
    OnlyNoTools,
    OnlyOne,
    OnlyText,
    OnlyTrue,
    OnlyZero,
    RepetitionPenalty,
    RequestId,
    SamplingFields,
    Temperature,
    Timeout,
    TokenId,
    TopK,
    TopP,
    at_most,
)


class TextPart(ApiModel):
    type: Literal["text"]
    text: str


class RefusalPart(ApiModel):
    type: Literal["refusal"]
    refusal: str


class InputAudio(ApiModel):
    """``data`` is base64, or a ``data:`` or ``http(s):`` URL."""

    data: Annotated[str, Field(min_length=1)]
    format: Name | None = None


class InputAudioPart(ApiModel):
    type: Literal["input_audio"]
    input_audio: InputAudio


class MediaUrl(ApiModel):
    url: Annotated[str, Field(min_length=1)]


class ImageUrl(MediaUrl):
    """``detail``: a ``"low"`` image is scaled down to at most 512 x 512 pixels."""

    detail: Literal["auto", "low", "high"] | None = None


class AudioUrlPart(ApiModel):
    type: Literal["audio_url"]
    audio_url: MediaUrl


class ImageUrlPart(ApiModel):
    type: Literal["image_url"]
    image_url: ImageUrl


class VideoUrlPart(ApiModel):
    type: Literal["video_url"]
    video_url: MediaUrl


_PARTS = ("text", "refusal", "input_audio", "audio_url", "image_url", "video_url")


def _part_tag(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return TAG + kind if kind in _PARTS else None


ContentPart = Annotated[
    Annotated[TextPart, Tag("§text")]
    | Annotated[RefusalPart, Tag("§refusal")]
    | Annotated[InputAudioPart, Tag("§input_audio")]
    | Annotated[AudioUrlPart, Tag("§audio_url")]
    | Annotated[ImageUrlPart, Tag("§image_url")]
    | Annotated[VideoUrlPart, Tag("§video_url")],
    Discriminator(
        _part_tag,
        custom_error_type="content_part_type",
        custom_error_message=f"must be an object whose type is one of: {', '.join(_PARTS)}",
    ),
]


def _content_tag(content: Any) -> str | None:
    if isinstance(content, list):
        return "§parts"
    return "§content" if isinstance(content, str) else None


Content = Annotated[
    Annotated[str, Tag("§content")] | Annotated[list[ContentPart], Tag("§parts"), at_most(1024, least=1)],
    Discriminator(
        _content_tag,
        custom_error_type="content_type",
        custom_error_message="must be a string or a list of content parts",
    ),
]


class SpokenAnswer(ApiModel):
    """The speech of an earlier answer, sent back. Answers are not kept, so only the transcript is read."""

    id: Name | None = None
    transcript: str | None = None
    data: str | None = None
    expires_at: int | None = None
    codes: Annotated[list[Annotated[list[int], at_most(256)]], at_most(2**15)] | None = None


class ChatMessage(ApiModel):
    """One turn. Only an assistant's turn may lack content, if it has a transcript or a refusal."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Name | None = None
    refusal: str | None = None
    tool_call_id: OnlyNone = None
    tool_calls: OnlyEmptyList = None
    function_call: OnlyNone = None
    audio: SpokenAnswer | None = None
    annotations: OnlyEmptyList = None


class StreamOptions(ApiModel):
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: OnlyFalse = False


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


class ChatCompletionRequest(SamplingFields, ExtensionFields):
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
    # vLLM's. An answer is always a new turn, even after an assistant's.
    add_generation_prompt: OnlyTrue = None
    continue_final_message: OnlyFalse = None

    # Of no effect on the answer.
    user: Name | None = None
    metadata: Annotated[dict[Name, str], Field(max_length=64)] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None
    parallel_tool_calls: bool | None = None

    service_tier: OnlyDefaultTier = None
    n: OnlyOne = 1
    logprobs: OnlyFalse = None
    top_logprobs: OnlyZero = None
    logit_bias: OnlyEmptyDict = None
    tools: OnlyEmptyList = None
    tool_choice: OnlyNoTools = None
    functions: OnlyEmptyList = None
    function_call: OnlyNoTools = None
    response_format: OnlyText = None
    store: OnlyFalse = None
    prediction: OnlyNone = None
    reasoning_effort: OnlyNone = None
    verbosity: OnlyNone = None
    web_search_options: OnlyNone = None


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


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


class SpeechRequest(ExtensionFields):
    model: Name | None = None
    input: Annotated[str, Field(min_length=1, max_length=16_384), AfterValidator(_not_blank)]
    voice: Name | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    stream: bool = False
    stream_format: Literal["audio", "sse"] | None = None
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    user: Name | None = None
    instructions: OnlyEmptyText = None

    @property
    def audio_format(self) -> str:
        """The format asked for, or OpenAI's default.

        ``stream`` without ``stream_format``, which OpenAI does not have, gives raw samples.
        """
        if self.response_format is not None:
            return self.response_format
        return "pcm" if self.stream and self.stream_format is None else "mp3"


class TranscriptionForm(ApiModel):
    """The fields of a transcription's multipart form besides ``file``. Every value is text."""

    model_config = ConfigDict(strict=False)

    model: Name | None = None
    language: Annotated[str, Field(min_length=2, max_length=16)] | None = None
    prompt: OnlyEmptyText = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    # There is only the most likely transcript, and it is not streamed.
    temperature: OnlyFormZero = None
    stream: OnlyFormFalse = None
    timestamp_granularities: Annotated[list[Literal["segment"]], at_most(4)] | None = None
    timeout: Timeout | None = None
    timings: bool = False
    request_id: RequestId | None = None


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


class AbortRequest(ApiModel):
    """``rid`` is SGLang's name for ``request_id``."""

    request_id: Name | None = None
    rid: Name | None = None
    abort_all: OnlyFalse = False
