"""The tools of a request: which there are, and whether the answer must call one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_omni.proto import RequestError


@dataclass(frozen=True)
class Tools:
    """
    Attributes:
        offered: OpenAI's tool objects, as the model gets them; never empty.
        forced: Those of which the answer must call one; none if it may call or not.
        parallel: True if one answer may call several.
    """

    offered: Sequence[Mapping[str, Any]]
    forced: Sequence[Mapping[str, Any]]
    parallel: bool


def tools_of(params: Mapping[str, Any]) -> Tools | None:
    """The tools of a chat; None if it has none, or ``tool_choice`` is "none".

    Raises:
        RequestError: ``tools`` or ``tool_choice`` is malformed, or one does not fit the other.
    """
    offered, choice = params.get("tools") or (), params.get("tool_choice")
    if not isinstance(offered, Sequence) or isinstance(offered, str):
        raise RequestError("tools must be a list", param="tools", code="invalid_type")
    names = [_name(tool, f"tools[{index}]") for index, tool in enumerate(offered)]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = f"tools[{index}].function.name"
            raise RequestError(f"{where}: a second tool {name!r}", param=where, code="invalid_value")
    wanted = _wanted(choice)
    if not offered:
        if wanted in ("none", "auto"):
            return None
        raise RequestError(
            "tool_choice: there are no tools to choose from; send tools, or leave it out",
            param="tool_choice",
            code="invalid_value",
        )
    if wanted == "none":
        return None
    parallel = params.get("parallel_tool_calls", True) is not False
    if isinstance(wanted, str):
        return Tools(offered, offered if wanted == "required" else (), parallel)
    if wanted[0] not in names:
        raise RequestError(
            f"tool_choice: there is no tool {wanted[0]!r}; there are {', '.join(names)}",
            param="tool_choice",
            code="invalid_value",
        )
    return Tools(offered, [offered[names.index(wanted[0])]], parallel=False)


def _wanted(choice: Any) -> str | tuple[str]:
    """ "none", "auto", "required", or the name of the tool to call, in a tuple."""
    if choice is None:
        return "auto"
    if choice in ("none", "auto", "required"):
        return str(choice)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(name, str):
        return (name,)
    raise RequestError(
        "tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': ...}}",
        param="tool_choice",
        code="invalid_value",
    )


def _name(tool: Any, where: str) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name or not isinstance(function, Mapping):
        raise RequestError(
            f"{where} must be {{'type': 'function', 'function': {{'name': ..., 'parameters': ...}}}}",
            param=where,
            code="invalid_value",
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        where = f"{where}.function.parameters"
        raise RequestError(f"{where} must be a JSON schema", param=where, code="invalid_type")
    return name
