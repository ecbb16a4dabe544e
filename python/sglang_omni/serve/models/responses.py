"""The body of ``/v1/responses``, and the items of its input."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from sglang_omni.serve.models.content import InputAudio
from sglang_omni.serve.models.fields import (
    TAG,
    ApiModel,
    Count,
    ExtensionFields,
    Name,
    OnlyDefaultTier,
    OnlyFalse,
    OnlyNone,
    SamplingFields,
    at_most,
    unsupported,
)

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(ApiModel):
    type: Literal["input_text"]
    text: str
    """What is said."""


class InputImage(ApiModel):
    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]
    """A ``data:`` URL, or an ``http(s):`` URL of a host that the server may fetch from."""
    detail: Literal["auto", "low", "high"] | None = None
    """A ``low`` image is scaled down to at most 512 x 512 pixels."""
    file_id: OnlyNone = None


class InputSound(ApiModel):
    type: Literal["input_audio"]
    input_audio: InputAudio
    """A recording."""


class OutputText(ApiModel):
    """Text of an earlier answer; of its other fields, none has an effect."""

    type: Literal["output_text"]
    text: str
    """What was said."""
    annotations: list[Any] | None = None
    """Accepted, no effect."""
    logprobs: list[Any] | None = None
    """Accepted, no effect."""


class OutputRefusal(ApiModel):
    type: Literal["refusal"]
    refusal: str
    """What an earlier answer refused with."""


_PARTS = ("input_text", "input_image", "input_audio", "output_text", "refusal")


def _kind(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def _part_tag(part: Any) -> str | None:
    kind = _kind(part)
    return TAG + kind if kind in (*_PARTS, "input_file") else None


def _no_file(part: Any) -> Any:
    raise unsupported("files are not read here; send their text as input_text")


Part = Annotated[
    Annotated[InputText, Tag("§input_text")]
    | Annotated[InputImage, Tag("§input_image")]
    | Annotated[InputSound, Tag("§input_audio")]
    | Annotated[OutputText, Tag("§output_text")]
    | Annotated[OutputRefusal, Tag("§refusal")]
    | Annotated[dict[str, Any], AfterValidator(_no_file), Tag("§input_file")],
    Discriminator(
        _part_tag,
        custom_error_type="input_part_type",
        custom_error_message=f"must be an object whose type is one of: {', '.join(_PARTS)}",
    ),
]


def _content_tag(content: Any) -> str | None:
    if isinstance(content, list):
        return "§parts"
    return "§content" if isinstance(content, str) else None


def _content(part: Any, least: int) -> Any:
    return Annotated[
        Annotated[str, Tag("§content")] | Annotated[list[part], Tag("§parts"), at_most(1024, least=least)],
        Discriminator(
            _content_tag,
            custom_error_type="content_type",
            custom_error_message="must be a string or a list of parts",
        ),
    ]


class InputMessage(ApiModel):
    """A message, also an earlier answer's. ``id``, ``status`` and ``phase`` have no effect."""

    type: Literal["message"] = "message"
    """May be left out if there is a ``role``."""
    role: Literal["user", "assistant", "system", "developer"]
    """Who speaks; ``developer`` is ``system``."""
    content: _content(Part, 0)  # type: ignore[valid-type]
    """A text, or parts of text and media."""
    id: Name | None = None
    """Accepted, no effect."""
    status: Status | None = None
    """Accepted, no effect."""
    phase: Name | None = None
    """Accepted, no effect."""


class FunctionCall(ApiModel):
    """A call that an earlier answer asked for."""

    type: Literal["function_call"]
    call_id: Name
    """The call's id, which its output names."""
    name: Name
    """The function."""
    arguments: str
    """JSON text, as the model wrote it."""
    id: Name | None = None
    """Accepted, no effect."""
    status: Status | None = None
    """Accepted, no effect."""


class FunctionCallOutput(ApiModel):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: Name
    """Which call this answers."""
    output: _content(InputText, 1)  # type: ignore[valid-type]
    """A text, or parts of text."""
    id: Name | None = None
    """Accepted, no effect."""
    status: Status | None = None
    """Accepted, no effect."""


class ReasoningText(ApiModel):
    type: Literal["reasoning_text"]
    text: str
    """What the model wrote."""


class Reasoning(ApiModel):
    """What a thinking model wrote before an earlier answer; its summary is not read."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], at_most(1024)] | None = None
    """The reasoning, in pieces."""
    summary: list[Any] | None = None
    """Accepted, not read."""
    encrypted_content: OnlyNone = None
    id: Name | None = None
    """Accepted, no effect."""
    status: Status | None = None
    """Accepted, no effect."""


_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


def _item_tag(item: Any) -> str | None:
    kind = _kind(item)
    if kind is None and isinstance(item, dict) and "role" in item:
        kind = "message"
    return TAG + kind if kind in _ITEMS else None


Item = Annotated[
    Annotated[InputMessage, Tag("§message")]
    | Annotated[FunctionCall, Tag("§function_call")]
    | Annotated[FunctionCallOutput, Tag("§function_call_output")]
    | Annotated[Reasoning, Tag("§reasoning")],
    Discriminator(
        _item_tag,
        custom_error_type="input_item_type",
        custom_error_message=f"must be an object whose type is one of: {', '.join(_ITEMS)}",
    ),
]


def _input_tag(value: Any) -> str | None:
    if isinstance(value, list):
        return "§items"
    return "§text" if isinstance(value, str) else None


Input = Annotated[
    Annotated[str, Tag("§text"), Field(min_length=1)]
    | Annotated[list[Item], Tag("§items"), at_most(4096, least=1)],
    Discriminator(
        _input_tag, custom_error_type="input_type", custom_error_message="must be a string or a list of items"
    ),
]


class PlainFormat(ApiModel):
    type: Literal["text"]


class ObjectFormat(ApiModel):
    type: Literal["json_object"]


class SchemaFormat(ApiModel):
    """A JSON schema, which is always held to; its name and description have no effect."""

    type: Literal["json_schema"]
    name: Name | None = None
    """Accepted, no effect."""
    description: str | None = None
    """Accepted, no effect."""
    schema_: dict[str, Any] = Field(alias="schema")
    """The JSON schema; it is always held to."""
    strict: bool | None = None
    """Accepted, no effect."""


_FORMATS = ("text", "json_object", "json_schema")


def _format_tag(value: Any) -> str | None:
    kind = _kind(value)
    return TAG + kind if kind in _FORMATS else None


Format = Annotated[
    Annotated[PlainFormat, Tag("§text")]
    | Annotated[ObjectFormat, Tag("§json_object")]
    | Annotated[SchemaFormat, Tag("§json_schema")],
    Discriminator(
        _format_tag,
        custom_error_type="text_format_type",
        custom_error_message=f"must be an object whose type is one of: {', '.join(_FORMATS)}",
    ),
]


class TextOptions(ApiModel):
    format: Format | None = None
    """What the text must match: anything, any JSON object, or a schema."""
    verbosity: OnlyNone = None


class ReasoningOptions(ApiModel):
    """``effort``: for a chat template that has a place for it. Reasoning is sent in full, never summed up."""

    effort: Name | None = None
    """A word for a chat template that has a place for it."""
    summary: OnlyNone = None
    generate_summary: OnlyNone = None


class FunctionTool(ApiModel):
    """A function that the answer may call. Its schema is held to as far as ``tool_choice`` says."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    """What the model calls it by."""
    description: str | None = None
    """What it does, for the model."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of its arguments."""
    strict: bool | None = None
    """True if the arguments are held to the schema."""


def _tool_tag(tool: Any) -> str | None:
    return "§function" if _kind(tool) == "function" else None


Tool = Annotated[
    Annotated[FunctionTool, Tag("§function")],
    Discriminator(
        _tool_tag,
        custom_error_type="tool_type",
        custom_error_message="only tools of the type function are known here: OpenAI's own tools run there",
    ),
]


class NamedFunction(ApiModel):
    type: Literal["function"]
    name: Name
    """The function that must be called."""


def _choice_tag(choice: Any) -> str | None:
    if isinstance(choice, str):
        return "§word"
    return "§function" if _kind(choice) == "function" else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("§word")] | Annotated[NamedFunction, Tag("§function")],
    Discriminator(
        _choice_tag,
        custom_error_type="tool_choice_type",
        custom_error_message="must be none, auto, required, or an object with the type function and a name",
    ),
]

Include = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


class ResponseStreamOptions(ApiModel):
    """Accepted because clients send it: nothing is added to events here."""

    include_obfuscation: bool | None = None
    """Accepted, no effect."""


class ResponsesRequest(SamplingFields, ExtensionFields):
    """A conversation to answer, which may continue a kept response."""

    model: Name | None = None
    """A served name; the first one if left out."""
    input: Input
    """A user's message, or the items of a conversation."""
    instructions: str | None = None
    """A system message before the conversation; not kept for the next response."""
    previous_response_id: Name | None = None
    """A kept response, whose conversation comes before ``input``."""
    store: bool = True
    """True if the response is kept, so that a next one can continue it."""
    max_output_tokens: Count | None = None
    """The most tokens of the answer; by default the rest of the context."""
    text: TextOptions = Field(default_factory=TextOptions)
    """What the answer's text must match."""
    tools: Annotated[list[Tool], at_most(1024)] | None = None
    """Functions that the answer may call."""
    tool_choice: ToolChoice = "auto"
    """The answer may call, must call, must not call, or calls one function."""
    parallel_tool_calls: bool = True
    """True if one answer may have several calls."""
    reasoning: ReasoningOptions | None = None
    """How much a thinking model reasons."""
    include: Annotated[list[Include], at_most(16)] | None = None
    """``message.output_text.logprobs`` adds log-probabilities. Reasoning is always sent, as plain text, so
    that ``reasoning.encrypted_content`` adds nothing."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """How many of the likeliest tokens at each place are reported."""
    stream: bool = False
    """True if the answer comes as server-sent events while it is made."""
    stream_options: ResponseStreamOptions | None = None
    """Accepted, no effect."""
    truncation: Literal["disabled"] = "disabled"
    """Only ``disabled``: a conversation that is too long is refused."""
    chat_template_kwargs: dict[Name, Any] | None = None
    """Further variables of the chat template."""
    metadata: Annotated[dict[Name, str], Field(max_length=64)] | None = None
    """Repeated in the response, no effect."""

    # Of no effect on the answer.
    user: Name | None = None
    """Names the session, if ``prompt_cache_key`` does not; no effect on the answer."""
    safety_identifier: Name | None = None
    """Accepted, no effect."""
    prompt_cache_key: Name | None = None
    """Names the session, whose requests go to the worker that has their cache."""
    prompt_cache_retention: Name | None = None
    """Accepted, no effect."""

    service_tier: OnlyDefaultTier = None
    background: OnlyFalse = None
    conversation: OnlyNone = None
    prompt: OnlyNone = None
    max_tool_calls: OnlyNone = None
