"""Tools that an answer may call, the calls of earlier answers, and OpenAI's older functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sglang_omni.serve.api.fields import ApiModel, Name, at_most

FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


class Function(ApiModel):
    """``parameters`` is a JSON schema; ``strict`` holds the arguments to it."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(ApiModel):
    type: Literal["function"]
    function: Function


class FunctionChoice(ApiModel):
    name: FunctionName


class ToolOfChoice(ApiModel):
    type: Literal["function"]
    function: FunctionChoice


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
    arguments: str = ""


class MessageToolCall(ApiModel):
    """A call of an earlier answer. ``index`` is what clients keep of a streamed one."""

    id: Name | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


MessageToolCalls = Annotated[list[MessageToolCall], at_most(1024)]


class ToolFields(ApiModel):
    """Attributes:
    functions, function_call: OpenAI's older names; the answer then has its older form as well.
    """

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: LegacyChoice | None = None
