"""A conversation with tools and reasoning as a prompt, and how the answer to it must be read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_omni.answers import structural_tags as forced
from sglang_omni.answers.formats import (
    CALL_FORMATS,
    NO_REASONING,
    PLAIN,
    PLAIN_NAME,
    THINKING,
    CallFormat,
    call_format_of,
    thinking_of,
)
from sglang_omni.answers.parsers import check_parsers
from sglang_omni.answers.reader import Reading
from sglang_omni.answers.tools_prompt import tools_as_text
from sglang_omni.preprocessing.chat_template import FIELDS, ChatTemplate
from sglang_omni.preprocessing.deadline import Check, go_on
from sglang_omni.preprocessing.request import flag_param, mapping_param, stage_params
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.preprocessing.tools import Tools, tools_of
from sglang_omni.proto import OmniRequest, RequestError

_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


class ChatPrompts:
    """Makes the prompts of chats with one checkpoint's chat template.

    Args:
        prompts: The checkpoint's tokenizer and templates.
        tool_call_parser: The name of the format of calls; None for the one that the template tells.
        reasoning_parser: The name of the marks around reasoning, or "none" to leave them in the answer; None
            for those that the template tells.

    Raises:
        ValueError: There is no parser of that name.
    """

    def __init__(
        self,
        prompts: PromptEncoder,
        *,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        check_parsers(tool_call_parser, reasoning_parser)
        self.prompts = prompts
        self._calls = tool_call_parser
        self._reasoning = reasoning_parser

    def encode(
        self, messages: Sequence[Mapping[str, Any]], request: OmniRequest, *, check: Check = go_on
    ) -> tuple[list[int], Reading | None]:
        """Token ids of a conversation, and how the answer must be read.

        Args:
            messages: Their contents are texts or lists of parts.
            check: Called between the pieces of a long text; an exception that it raises ends the work.

        Raises:
            RequestError: The template refuses the conversation, it is longer than the context, or the model
                cannot do what the request asks of it.
        """
        text, reading = self.render(messages, request)
        return self.prompts.encode_text(text, param="messages", check=check), reading

    def render(
        self, messages: Sequence[Mapping[str, Any]], request: OmniRequest
    ) -> tuple[str, Reading | None]:
        """The conversation's text for ``PromptEncoder.encode_text``, and how the answer must be read; None
        if all of it is content.

        Raises:
            RequestError: As of ``encode``, but for the length.
        """
        tools = tools_of(request.params)
        template = self.prompts.templates.choose(tools=tools is not None)
        in_template = "tools" in template.variables
        has_calls = not template.forms.calls and any(map(_is_of_tools, messages))
        if not in_template and (tools is not None or has_calls):
            messages = tools_as_text(messages, () if tools is None else tools.offered)
        length = self._call_format(template)[1].id_length
        if length is not None:
            messages = [_with_ids(message, length) for message in messages]
        continues = _continues(request)
        text = self.prompts.render(
            template.forms.fit(messages),
            _options(request, template),
            tools=tools.offered if tools is not None and in_template else None,
            add_generation_prompt=not continues and request.params.get("add_generation_prompt") is not False,
            continues=continues,
        )
        return text, self._reading(text, template, tools, request)

    def no_effort(self, *, with_tools: bool) -> str | None:
        """Why a reasoning effort has no effect on the model; None if it has one."""
        return _no_effort(self.prompts.templates.choose(tools=with_tools))

    def _call_format(self, template: ChatTemplate) -> tuple[str | None, CallFormat]:
        """The name of the format in which the model writes calls, None if it is not known here, and the
        format; another's parser is known by its name alone."""
        in_template = "tools" in template.variables
        name = self._calls or (call_format_of(template.source) if in_template else "hermes")
        return name, CALL_FORMATS.get(name or PLAIN_NAME, PLAIN)

    def _reading(
        self, text: str, template: ChatTemplate, tools: Tools | None, request: OmniRequest
    ) -> Reading | None:
        thinking = self._reasoning or thinking_of(template.source)
        begin, end = THINKING.get(thinking or "", ("<think>", "</think>"))
        if thinking == NO_REASONING or text.rstrip().endswith(end):
            thinking = None
        if thinking is None and tools is None:
            return None
        inside = thinking is not None and text.rstrip().endswith(begin)
        calls = None
        wanted = answer = forced.asked_for(stage_params(request, "thinker"))
        if tools is not None:
            calls, answer = _calls_of(*self._call_format(template), tools, wanted)
        if answer is not None and thinking in THINKING:
            answer = forced.after_thinking((begin, end), answer, inside=inside)
        sampling: dict[str, Any] = {}
        if answer is not None and answer is not wanted:
            sampling = dict.fromkeys(_GRAMMARS) | {"structural_tag": forced.structural_tag(answer)}
        return Reading(calls=calls, thinking=thinking, inside=inside, sampling=sampling)


def _calls_of(
    name: str | None, form: CallFormat, tools: Tools, wanted: forced.Format | None
) -> tuple[str, forced.Format | None]:
    """The name of the format of an answer's calls, and what the answer must match.

    Args:
        wanted: What its content must match.
    """
    if tools.forced:
        known = name if name in CALL_FORMATS else PLAIN_NAME
        return known or PLAIN_NAME, forced.forced_calls(form, tools.forced, parallel=tools.parallel)
    if name is None:
        raise RequestError(
            "tools: how this model writes calls is not known here; start the server with "
            "--tool-call-parser NAME, or force a call with tool_choice",
            param="tools",
            code="unsupported_parameter",
        )
    if name not in CALL_FORMATS:
        if wanted is not None:
            raise RequestError(
                f"response_format: not together with tools, whose calls SGLang's parser {name!r} reads",
                param="response_format",
                code="unsupported_value",
            )
        return name, None
    if wanted is not None:
        calls = forced.forced_calls(form, tools.offered, parallel=tools.parallel)
        return name, forced.either(wanted, calls)
    if any(map(forced.is_strict, tools.offered)):
        return name, forced.strict_calls(form, tools.offered, parallel=tools.parallel)
    return name, None


def _with_ids(message: Mapping[str, Any], length: int) -> Mapping[str, Any]:
    """A message whose ids of calls are letters and digits of this number: the last of those they have."""

    def fitting(call_id: Any) -> str:
        return re.sub("[^A-Za-z0-9]", "", str(call_id or ""))[-length:].rjust(length, "0")

    if message.get("tool_calls"):
        calls = [{**call, "id": fitting(call.get("id"))} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if message["role"] == "tool":
        return {**message, "tool_call_id": fitting(message.get("tool_call_id"))}
    return message


def _options(request: OmniRequest, template: ChatTemplate) -> dict[str, Any]:
    """The template's variables that the request sets.

    Raises:
        RequestError: One is a field of the request itself, or there is a reasoning effort and the template
            has no place for it.
    """
    options = dict(mapping_param(request.params, "chat_template_kwargs"))
    if taken := [name for name in FIELDS if name in options]:
        raise RequestError(
            f"chat_template_kwargs.{taken[0]}: set the request's own field {taken[0]!r}",
            param=f"chat_template_kwargs.{taken[0]}",
            code="unsupported_parameter",
        )
    documents = options.get("documents")
    if documents is not None and not _are_objects(documents):
        raise RequestError(
            "chat_template_kwargs.documents must be a list of objects, such as {'title': ..., 'text': ...}",
            param="chat_template_kwargs.documents",
            code="invalid_type",
        )
    effort = request.params.get("reasoning_effort")
    if effort is not None:
        if why := _no_effort(template):
            raise RequestError(
                f"reasoning_effort: {why}; leave it out",
                param="reasoning_effort",
                code="unsupported_parameter",
            )
        options["reasoning_effort"] = effort
    return options


def _no_effort(template: ChatTemplate) -> str | None:
    """Why a reasoning effort has no effect; None if it has one."""
    if "reasoning_effort" in template.variables:
        return None
    own = sorted(name for name in template.variables.difference(FIELDS) if not name.endswith("_token"))
    instead = f", and chat_template_kwargs sets what it has: {', '.join(own)}" if own else ""
    return f"this model's chat template has no place for it{instead}"


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def _is_of_tools(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _continues(request: OmniRequest) -> bool:
    if not flag_param(request.params, "continue_final_message"):
        return False
    if request.params.get("add_generation_prompt"):
        raise RequestError(
            "continue_final_message: not together with add_generation_prompt, which begins a new message",
            param="continue_final_message",
            code="invalid_value",
        )
    return True
