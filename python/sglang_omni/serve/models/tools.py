"""Tools that an answer may call, the calls of earlier answers, and OpenAI's older functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sglang_omni.serve.models.fields import ApiModel, Name, at_most

FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


class Function(ApiModel):
    """``parameters`` is a JSON schema; ``strict`` holds the arguments to it."""

    name: FunctionName
    """What the model calls it by."""
    description: str | None = None
    """What it does, for the model."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of its arguments."""
    strict: bool | None = None
    """True if the arguments are held to the schema."""


class Tool(ApiModel):
    type: Literal["function"]
    function: Function
    """The function that the answer may call."""


class FunctionChoice(ApiModel):
    name: FunctionName
    """The function that must be called."""


class ToolOfChoice(ApiModel):
    type: Literal["function"]
    function: FunctionChoice
    """The function that must be called."""


def _choice_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "§mode"
    return "§tool" if isinstance(value, dict) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("§mode")] | Annotated[ToolOfChoice, Tag("§tool")],
    Discriminator(
        _choice_tag,
        custom_error_type="tool_choice_type",
        custom_error_message="must be 'none', 'auto', 'required', or an object that names a function",
    ),
]
LegacyChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("§mode")] | Annotated[FunctionChoice, Tag("§tool")],
    Discriminator(
        _choice_tag,
        custom_error_type="function_call_type",
        custom_error_message="must be 'none', 'auto', or an object that names a function",
    ),
]
Tools = Annotated[list[Tool], at_most(1024)]
Functions = Annotated[list[Function], at_most(1024)]


class CalledFunction(ApiModel):
    """``arguments`` is JSON text, as the model wrote it."""

    name: FunctionName
    """The function's name."""
    arguments: str = ""
    """JSON text, as the model wrote it."""


class MessageToolCall(ApiModel):
    """A call of an earlier answer. ``index`` is what clients keep of a streamed one."""

    id: Name | None = None
    """The call's id, which the message with its result names."""
    type: Literal["function"] = "function"
    function: CalledFunction
    """What was called."""
    index: int | None = None
    """What clients keep of a streamed call; no effect."""


MessageToolCalls = Annotated[list[MessageToolCall], at_most(1024)]


class ToolFields(ApiModel):
    """What an answer may call."""

    tools: Tools | None = None
    """Functions that the answer may call."""
    tool_choice: ToolChoice | None = None
    """The answer may call, must call, must not call, or calls one function."""
    parallel_tool_calls: bool | None = None
    """True if one answer may have several calls."""
    functions: Functions | None = None
    """OpenAI's older name of ``tools``; the answer then has its older form as well."""
    function_call: LegacyChoice | None = None
    """OpenAI's older name of ``tool_choice``."""
