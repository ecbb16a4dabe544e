"""The forms of messages that a chat template reads, and messages in those forms.

OpenAI's clients send a content as a text or as a list of parts, and the arguments of a call as JSON text. A
template is written for some of these forms, and loses, misprints or refuses others. What it reads is found by
rendering short conversations: the source of a template with macros does not show it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Messages = Sequence[Mapping[str, Any]]

# Words that no template writes by itself.
_FIRST, _SECOND, _SOUGHT = "quillfeather", "marshlantern", "tidewheel"
_USER = {"role": "user", "content": "Hello."}
# What the conversations' calls are of.
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
# Letters and digits of the number that Mistral's templates want.
_CALL_ID = "a1b2c3d4e"


@dataclass(frozen=True)
class TemplateForms:
    """
    Attributes:
        texts: Roles whose content may be a text.
        parts: Roles whose content may be a list of parts, of which all texts are written.
        calls: True if it writes earlier calls.
        arguments_as_text: True if the arguments of a call are JSON text, False if an object.
        nothing: The content of a message that has only calls.
    """

    texts: frozenset[str]
    parts: frozenset[str]
    calls: bool
    arguments_as_text: bool
    nothing: str | None

    def fit(self, messages: Messages) -> list[dict[str, Any]]:
        """The messages in forms that the template reads.

        Args:
            messages: Their contents are texts or lists of parts, the arguments of calls as they were sent.
        """
        return [self._fitting(message) for message in messages]

    def _fitting(self, message: Mapping[str, Any]) -> dict[str, Any]:
        fitting = {**message, "content": self._content(message["role"], message["content"])}
        if reasoning := message.get("reasoning_content"):
            # Both names that templates read, as transformers 5.24 gives them.
            fitting.setdefault("thinking", reasoning)
        if calls := message.get("tool_calls"):
            fitting["tool_calls"] = with_arguments(calls, as_text=self.arguments_as_text)
            if not fitting["content"]:
                fitting["content"] = self.nothing
        return fitting

    def _content(self, role: str, content: str | Sequence[Mapping[str, Any]]) -> Any:
        if isinstance(content, str):
            if role in self.texts or role not in self.parts:
                return content
            return [{"type": "text", "text": content}]
        if role in self.parts or any(part["type"] != "text" for part in content):
            return list(content)
        return "\n".join(part["text"] for part in content)


def forms_of(render: Callable[[Messages], str]) -> TemplateForms:
    """What a template reads. Where it shows nothing in any form, that is taken to be texts and objects.

    Args:
        render: Renders a conversation; may raise anything.
    """

    def shows(messages: Messages, words: Sequence[str], misprinted: Sequence[str]) -> bool:
        try:
            text = render(messages)
        except Exception:  # noqa: BLE001  a template is a program of others: it does not read this form
            return False
        return all(word in text for word in words) and not any(word in text for word in misprinted)

    def reads_calls(as_text: bool, nothing: str | None) -> bool:
        called = _called(as_text, nothing)
        # An object as Python prints it, and a text quoted once more.
        wrong = (f"'word': '{_SOUGHT}'", f'\\"{_SOUGHT}\\"')
        return any(
            shows(turns, [_SOUGHT], wrong) for turns in ([_USER, called, _result("3")], [_USER, called])
        )

    forms = ((False, ""), (False, None), (True, ""), (True, None))
    read = next((form for form in forms if reads_calls(*form)), None)
    as_text, nothing = read or forms[0]
    around: dict[str, tuple[Messages, Messages]] = {
        "system": ((), (_USER,)),
        "user": ((), ()),
        "assistant": ((_USER,), (_USER,)),
        "tool": ((_USER, _called(as_text, nothing)), ()),
    }

    def reads(role: str, content: Any, words: Sequence[str], misprinted: Sequence[str] = ()) -> bool:
        before, after = around[role]
        turn = _result(content) if role == "tool" else {"role": role, "content": content}
        return shows([*before, turn, *after], words, misprinted)

    def reads_parts(role: str) -> bool:
        words = (_FIRST, _SECOND)
        parts = [{"type": "text", "text": word} for word in words]
        # A list as Python prints it, or as JSON.
        return reads(role, parts, words, (f"'{_FIRST}'", f'"{_FIRST}"'))

    return TemplateForms(
        texts=frozenset(role for role in around if reads(role, _FIRST, [_FIRST])),
        parts=frozenset(filter(reads_parts, around)),
        calls=read is not None,
        arguments_as_text=as_text,
        nothing=nothing,
    )


def _called(as_text: bool, nothing: str | None) -> dict[str, Any]:
    function = {"name": "look", "arguments": {"word": _SOUGHT}}
    calls = with_arguments([{"id": _CALL_ID, "type": "function", "function": function}], as_text=as_text)
    return {"role": "assistant", "content": nothing, "tool_calls": calls}


def _result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _CALL_ID, "name": "look", "content": content}


def with_arguments(calls: Sequence[Mapping[str, Any]], *, as_text: bool = False) -> list[dict[str, Any]]:
    """Calls whose arguments are objects, or JSON text. A text that is no object, as a model may have written
    it, stays a text."""

    def read(written: Any) -> Any:
        if as_text:
            return written if written and isinstance(written, str) else _json(written or {})
        if not isinstance(written, str):
            return written or {}
        try:
            arguments = json.loads(written) if written.strip() else {}
        except ValueError:
            return written
        return arguments if isinstance(arguments, dict) else written

    return [
        {**call, "function": {**call["function"], "arguments": read(call["function"].get("arguments"))}}
        for call in calls
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
