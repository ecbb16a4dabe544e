"""The body of ``/v1/responses``, and the items of its input."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from sglang_omni.serve.api.fields import (
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
from sglang_omni.serve.api.protocol.content import InputAudio

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(ApiModel):
    type: Literal["input_text"]
    text: str


class InputImage(ApiModel):
    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto", "low", "high"] | None = None
    file_id: OnlyNone = None


class InputSound(ApiModel):
    type: Literal["input_audio"]
    input_audio: InputAudio


class OutputText(ApiModel):
    """Text of an earlier answer; of its other fields, none has an effect."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class OutputRefusal(ApiModel):
    type: Literal["refusal"]
    refusal: str


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
    role: Literal["user", "assistant", "system", "developer"]
    content: _content(Part, 0)  # type: ignore[valid-type]
    id: Name | None = None
    status: Status | None = None
    phase: Name | None = None


class FunctionCall(ApiModel):
    """A call that an earlier answer asked for."""

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: str
    id: Name | None = None
    status: Status | None = None


class FunctionCallOutput(ApiModel):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: Name
    output: _content(InputText, 1)  # type: ignore[valid-type]
    id: Name | None = None
    status: Status | None = None


class ReasoningText(ApiModel):
    type: Literal["reasoning_text"]
    text: str


class Reasoning(ApiModel):
    """What a thinking model wrote before an earlier answer; its summary is not read."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], at_most(1024)] | None = None
    summary: list[Any] | None = None
    encrypted_content: OnlyNone = None
    id: Name | None = None
    status: Status | None = None


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
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


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
    verbosity: OnlyNone = None


class ReasoningOptions(ApiModel):
    """``effort``: for a chat template that has a place for it. Reasoning is told in full, never summed up."""

    effort: Name | None = None
    summary: OnlyNone = None
    generate_summary: OnlyNone = None


class FunctionTool(ApiModel):
    """A function that the answer may call. Its schema is held to as far as ``tool_choice`` says."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


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


class ResponsesRequest(SamplingFields, ExtensionFields):
    """
    Attributes:
        input: A user's message, or the items of a conversation.
        previous_response_id: A kept response, whose conversation comes before ``input``.
        store: Whether the response is kept for that.
        top_logprobs: Tell each token's log-probability, and those of this many of the likeliest tokens.
        include: ``message.output_text.logprobs`` tells log-probabilities. Reasoning is always told, as plain
            text, so that ``reasoning.encrypted_content`` adds nothing.
    """

    model: Name | None = None
    input: Input
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool = True
    max_output_tokens: Count | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    tools: Annotated[list[Tool], at_most(1024)] | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Include], at_most(16)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    truncation: Literal["disabled"] = "disabled"
    chat_template_kwargs: dict[Name, Any] | None = None
    metadata: Annotated[dict[Name, str], Field(max_length=64)] | None = None

    # Of no effect on the answer.
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None

    service_tier: OnlyDefaultTier = None
    background: OnlyFalse = None
    conversation: OnlyNone = None
    prompt: OnlyNone = None
    max_tool_calls: OnlyNone = None
