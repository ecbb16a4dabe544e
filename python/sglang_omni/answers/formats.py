"""The families of models by how they write calls and reasoning, under SGLang's and vLLM's names."""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sglang_omni.answers.delta import Calls
from sglang_omni.answers.json_calls import JsonCalls, JsonForm
from sglang_omni.answers.xml_calls import XmlCalls

Tools = Sequence[Mapping[str, Any]]


class CallParser(Protocol):
    """Finds calls in a text that grows; what it returns is content."""

    @property
    def held(self) -> int | None:
        """The number of last characters that it holds back; None if it does not say so."""

    def feed(self, text: str) -> str: ...

    def finish(self) -> str: ...


@dataclass(frozen=True)
class CallFormat:
    """How a family writes calls.

    Attributes:
        parser: Makes the parser of one answer.
        begin, end: What a call is between if it must be made; ``{name}`` is the tool's name, as JSON text.
        separator: Between two calls.
        trigger: What a call begins with, and no other text.
        around: What all calls of an answer are between.
        style: xgrammar's name for how arguments are written.
        id_length: Of a call's id if the family's templates want it to be letters and digits of this number.
        tokens: Marks that may be special tokens, which a user never sees and the parser must.
    """

    parser: Callable[[Calls, Tools], CallParser]
    begin: str
    end: str
    separator: str
    trigger: str
    around: tuple[str, str] = ("", "")
    style: Literal["json", "qwen_xml"] = "json"
    id_length: int | None = None
    tokens: tuple[str, ...] = ()

    def new_id(self) -> str:
        if self.id_length is None:
            return f"call_{uuid.uuid4().hex[:24]}"
        return "".join(random.choices(string.ascii_letters + string.digits, k=self.id_length))


def _json(form: JsonForm) -> Callable[[Calls, Tools], CallParser]:
    return lambda calls, tools: JsonCalls(form, calls, [tool["function"]["name"] for tool in tools])


_HERMES = CallFormat(
    _json(JsonForm("<tool_call>", "</tool_call>")),
    begin='<tool_call>\n{{"name": {name}, "arguments": ',
    end="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
    tokens=("<tool_call>", "</tool_call>"),
)
_LLAMA = CallFormat(
    _json(JsonForm("<|python_tag|>", bare="{", is_special=True)),
    begin='{{"name": {name}, "parameters": ',
    end="}",
    separator="; ",
    trigger='{"name": ',
    tokens=("<|python_tag|>",),
)
_MISTRAL = CallFormat(
    _json(JsonForm("[TOOL_CALLS]", named=True, is_special=True)),
    begin='{{"name": {name}, "arguments": ',
    end="}",
    separator=", ",
    trigger="[TOOL_CALLS]",
    around=("[TOOL_CALLS][", "]"),
    id_length=9,
    tokens=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)
_QWEN_CODER = CallFormat(
    XmlCalls,
    begin="<tool_call>\n<function={plain}>\n",
    end="\n</function>\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
    style="qwen_xml",
    tokens=("<tool_call>", "</tool_call>"),
)
# One list of calls and nothing else: how a call is forced if the model's own way is not known here.
PLAIN = CallFormat(
    _json(JsonForm("", bare="[{")),
    begin='{{"name": {name}, "parameters": ',
    end="}",
    separator=", ",
    trigger="[",
    around=("[", "]"),
)

CALL_FORMATS: dict[str, CallFormat] = {
    "hermes": _HERMES,
    "qwen": _HERMES,
    "qwen25": _HERMES,
    "qwen3_coder": _QWEN_CODER,
    "qwen3_xml": _QWEN_CODER,
    "llama3": _LLAMA,
    "llama3_json": _LLAMA,
    "mistral": _MISTRAL,
}
PLAIN_NAME = "plain"
# Marks around reasoning.
THINKING: dict[str, tuple[str, str]] = {
    "qwen3": ("<think>", "</think>"),
    "deepseek-r1": ("<think>", "</think>"),
    "deepseek_r1": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
}
NO_REASONING = "none"


def call_format_of(template: str) -> str | None:
    """The name of the format of calls that a chat template asks for or repeats; None if it is not known."""
    for mark, name in (
        ("<function=", "qwen3_coder"),
        ("<tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3"),
        ('"parameters": dictionary of argument name', "llama3"),
    ):
        if mark in template and (name != "qwen3_coder" or "<tool_call>" in template):
            return name
    return None


def thinking_of(template: str) -> str | None:
    """The name of the marks around reasoning that a chat template has; None if it has none."""
    if "</think>" in template:
        return "qwen3"
    return "mistral" if "[THINK]" in template else None
