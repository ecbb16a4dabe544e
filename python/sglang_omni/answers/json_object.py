"""One call written as a JSON object, read while it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Literal

from sglang_omni.answers.delta import Calls

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
# What may change where a value ends.
_TURNING = re.compile(r'["\\{}\[\],<]')
_LONGEST_KEY = 256
_ARGUMENTS = ("arguments", "parameters")


class JsonValue:
    """Finds the end of one JSON value in a text that grows; the value itself is not checked.

    Attributes:
        is_over: The value is complete, or the text went on with what cannot be JSON.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> int:
        """The number of first characters of ``text`` that belong to the value."""
        at = 0
        if self._escaped and text:
            self._escaped, at = False, 1
        while found := _TURNING.search(text, at):
            at, character = found.end(), found[0]
            if self._in_string:
                if character == "\\":
                    if at == len(text):
                        self._escaped = True
                        return at
                    at += 1
                elif character == '"':
                    self._in_string = False
                    self.is_over = self._depth == 0
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]" and self._depth > 0:
                self._depth -= 1
                self.is_over = self._depth == 0
            elif character == "<" or self._depth == 0:
                # A mark that ends the call, or what follows a number or a word.
                self.is_over = True
                return at - 1
            if self.is_over:
                return at
        return len(text)


class JsonObject:
    """A call as ``{"name": "...", "arguments": {...}}``, in any order; ``parameters`` is another name.

    The call begins once its name is known. Its arguments are told as the model writes them, whether or not
    they are valid.

    Args:
        calls: Where the call goes.
        names: The only names of calls; None for any.

    Attributes:
        state: ``"broken"`` if it is no call, which ``raw`` then holds; ``"over"`` once it is complete.
        raw: All text until the call has begun.
    """

    def __init__(self, calls: Calls, names: Collection[str] | None) -> None:
        self.state: Literal["open", "key", "colon", "value", "inside", "over", "broken"] = "open"
        self.raw = ""
        self.has_begun = False
        self._calls = calls
        self._names = names
        self._key = ""
        self._value = JsonValue()
        # What is read of the arguments while the call has no name yet; None: no arguments yet.
        self._arguments: str | None = None
        self._text = ""

    def feed(self, text: str) -> str:
        """Takes the call's part of ``text``; returns the rest, or all that may yet be either."""
        rest = text
        while rest and self.state not in ("over", "broken"):
            before = (self.state, len(rest))
            rest = self._step(rest)
            if (self.state, len(rest)) == before:
                break
        return rest

    def _step(self, text: str) -> str:
        match self.state:
            case "inside":
                return self._read_value(text)
            case "open":
                self.state = "key"
                return self._consume(text, 1)
        stripped = text.lstrip()
        if not stripped:
            return self._consume(text, len(text))
        text = self._consume(text, len(text) - len(stripped))
        match self.state:
            case "key":
                return self._read_key(text)
            case "colon":
                self.state = "value" if text[0] == ":" else "broken"
                return self._consume(text, 1) if text[0] == ":" else text
        return self._begin_value(text)

    def _read_key(self, text: str) -> str:
        if text[0] == ",":
            return self._consume(text, 1)
        if text[0] == "}":
            text = self._consume(text, 1)
            self._end()
            return text
        found = _STRING.match(text)
        if found is None:
            if text[0] != '"' or len(text) > _LONGEST_KEY:
                self._end()
            return text
        self._key, self.state = _decoded(found[0]), "colon"
        return self._consume(text, found.end())

    def _begin_value(self, text: str) -> str:
        if self._key == "name" and not self.has_begun:
            found = _STRING.match(text)
            if found is None:
                if text[0] != '"' or len(text) > _LONGEST_KEY:
                    self.state = "broken"
                return text
            text = self._consume(text, found.end())
            self._begin(_decoded(found[0]))
            return text
        self._value, self._text, self.state = JsonValue(), "", "inside"
        return text

    def _read_value(self, text: str) -> str:
        length = self._value.take(text)
        part, text = text[:length], self._consume(text, length)
        if self._value.is_over:
            self.state = "key"
        if self._key not in _ARGUMENTS:
            return text
        # Arguments that are a text, or null, are told once they are complete.
        if self._text or (part[:1] not in ("{", "[") and self._arguments is None):
            self._text += part
            if self._value.is_over:
                self._tell(_plain(self._text))
        else:
            self._tell(part)
        return text

    def _tell(self, arguments: str) -> None:
        self._arguments = (self._arguments or "") + arguments if not self.has_begun else ""
        if self.has_begun:
            self._calls.add(arguments)

    def _begin(self, name: str) -> None:
        if not name or (self._names is not None and name not in self._names):
            self.state = "broken"
            return
        self.state, self.has_begun, self.raw = "key", True, ""
        self._calls.begin(name)
        if self._arguments is not None:
            self._calls.add(self._arguments)

    def _end(self) -> None:
        if not self.has_begun:
            self.state = "broken"
            return
        if self._arguments is None:
            self._calls.add("{}")
        self.state = "over"

    def _consume(self, text: str, length: int) -> str:
        if not self.has_begun:
            self.raw += text[:length]
        return text[length:]


def _decoded(string: str) -> str:
    try:
        return str(json.loads(string, strict=False))
    except ValueError:
        return string[1:-1]


def _plain(value: str) -> str:
    """Arguments that the model has written as a text, or as null."""
    value = value.strip()
    return _decoded(value) if value.startswith('"') else "{}" if value == "null" else value
