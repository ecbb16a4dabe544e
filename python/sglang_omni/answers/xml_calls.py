"""Calls as Qwen3-Coder and Qwen3.5 write them: a tag for the function, and one for each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sglang_omni.answers.delta import Calls
from sglang_omni.answers.finder import CallFinder
from sglang_omni.answers.stop_matching import settled

_BEGIN = "<tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_VALUE_END = re.compile(r"\n?</parameter>|(?=\n?<parameter=)|(?=\n?</function>)")
_END = re.compile(r"\s*</function>\s*</tool_call>|\s*</tool_call>")
_FUNCTION_END = re.compile(r"\s*</function>\s*")
# No tag is longer, so that a longer text without one is no call.
_LONGEST_TAG = 512


class XmlCalls(CallFinder):
    """Finds calls in a text that grows.

    An argument is told once it is complete. A value is JSON unless the tool's schema says that it is a text.

    Args:
        calls: Where the calls go.
        tools: OpenAI's tool objects.
    """

    def __init__(self, calls: Calls, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(calls)
        self._schemas = {
            tool["function"]["name"]: (tool["function"].get("parameters") or {}).get("properties") or {}
            for tool in tools
        }
        self._state: Literal["text", "function", "arguments"] = "text"
        self._properties: Mapping[str, Any] = {}
        self._told = 0

    @property
    def held(self) -> int:
        """The number of last characters that may yet be content or not."""
        return (len(self._lead) if self._state == "function" else 0) + len(self._buffer)

    def finish(self) -> str:
        """The content that was held back. Called after the last text."""
        rest, self._buffer = self._buffer, ""
        if self._state == "arguments":
            # A call that is cut off: its arguments so far, also the one that has no end.
            parameter = _PARAMETER.match(rest)
            if parameter is not None and rest[parameter.end() :]:
                self._tell(parameter[1], rest[parameter.end() :])
            elif _FUNCTION_END.match(rest) is not None:
                self._close()
            return ""
        if self._state == "function":
            return self._lead + rest
        return "" if self._calls and rest.isspace() else rest

    def _step(self) -> str:
        match self._state:
            case "text":
                return self._look_for_mark()
            case "function":
                return self._look_for_function()
        self._read_argument()
        return ""

    def _look_for_mark(self) -> str:
        at = self._buffer.find(_BEGIN)
        if at < 0:
            length = settled(self._buffer, _BEGIN)
            content, self._buffer = self._buffer[:length], self._buffer[length:]
            return content
        content = self._buffer[:at].rstrip()
        end = at + len(_BEGIN)
        self._lead, self._buffer = self._buffer[len(content) : end], self._buffer[end:]
        self._state = "function"
        return content

    def _look_for_function(self) -> str:
        found = _FUNCTION.match(self._buffer)
        if found is not None:
            name = found[1].strip()
            self._calls.begin(name)
            self._properties, self._told = self._schemas.get(name, {}), 0
            self._buffer, self._state = self._buffer[found.end() :], "arguments"
            return ""
        text = self._buffer.lstrip()
        if len(text) < _LONGEST_TAG and (text.startswith("<function=") or "<function=".startswith(text)):
            return ""
        self._state = "text"
        return self._lead

    def _read_argument(self) -> None:
        parameter = _PARAMETER.match(self._buffer)
        if parameter is not None:
            found = _VALUE_END.search(self._buffer, parameter.end())
            if found is not None:
                self._tell(parameter[1], self._buffer[parameter.end() : found.start()])
                self._buffer = self._buffer[found.end() :]
            return
        end = _END.match(self._buffer)
        if end is None and not _may_be_tag(self._buffer):
            end = _FUNCTION_END.match(self._buffer)
            self._close()
        elif end is not None:
            self._close()
        if end is not None:
            self._buffer = self._buffer[end.end() :]

    def _close(self) -> None:
        self._calls.add("}" if self._told else "{}")
        self._state = "text"

    def _tell(self, name: str, value: str) -> None:
        name = name.strip()
        written = json.dumps(self._value(name, value), ensure_ascii=False)
        self._calls.add(f"{', ' if self._told else '{'}{json.dumps(name, ensure_ascii=False)}: {written}")
        self._told += 1

    def _value(self, name: str, text: str) -> Any:
        schema = self._properties.get(name)
        if isinstance(schema, Mapping) and "enum" in schema and text.strip() in schema["enum"]:
            return text.strip()
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            return text
        try:
            return json.loads(text)
        except ValueError:
            # Some write Python's words.
            return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _may_be_tag(text: str) -> bool:
    """True if more text may make it an argument, or the end of the call."""
    rest = _FUNCTION_END.sub("", text, count=1) if _FUNCTION_END.match(text) else text.lstrip()
    tags = ("</tool_call>",) if rest != text.lstrip() else ("<parameter=", "</function>", "</tool_call>")
    return len(text) < _LONGEST_TAG and any(rest.startswith(tag) or tag.startswith(rest) for tag in tags)
