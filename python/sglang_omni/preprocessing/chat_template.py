"""A checkpoint's chat templates: which one a conversation takes, and its text, as transformers renders it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from sglang_omni.preprocessing.template_files import TemplateSource, special_tokens, template_sources
from sglang_omni.preprocessing.template_forms import PROBE_TOOL, Messages, TemplateForms, forms_of
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from jinja2 import Template

logger = logging.getLogger(__name__)

# Variables that a request's other fields set.
FIELDS = ("messages", "tools", "add_generation_prompt")
_REMEDY = "start the server with --chat-template FILE, or use the completions API with a prompt"
# Marks the end of the text that an answer continues, with a space behind it to see if the template trims it.
_END = f"CONTINUES_{secrets.token_hex(8)} "


@dataclass(frozen=True)
class ChatTemplate:
    """
    Attributes:
        source: As the checkpoint has it.
        template: Compiled.
        variables: What a request may set, such as ``tools`` or ``enable_thinking``.
        forms: Of the messages that it reads.
    """

    source: str
    template: Template
    variables: frozenset[str]
    forms: TemplateForms


@dataclass(frozen=True)
class BrokenTemplate:
    """A template that cannot be compiled.

    Attributes:
        source: Where it is.
        reason: Jinja's words, with the line.
    """

    source: TemplateSource
    reason: str


class ChatTemplates:
    """The templates of one checkpoint.

    Attributes:
        default: None if the checkpoint has no chat template.
        with_tools: For conversations with tools.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Any],
        *,
        stand_ins: Mapping[str, str],
        of_processor: bool = False,
        file: Path | None = None,
    ) -> None:
        """
        Args:
            directory: Of the checkpoint.
            settings: Of ``tokenizer_config.json``.
            stand_ins: Of hidden characters, as ``TextTokenizer.stand_ins``.
            of_processor: True if transformers would make prompts with the model's processor, which has no
                template of its own for tools.
            file: The template to take instead of the checkpoint's.

        Raises:
            ValueError: ``file`` is not there, or cannot be compiled.
        """
        self._special_tokens = special_tokens(directory, settings)
        self._stand_ins = stand_ins
        if file is None:
            sources = template_sources(directory, settings, of_processor=of_processor)
        else:
            sources = {"default": TemplateSource(_read(file), file)}
        self._names = sorted(sources)
        self.default = self._compiled(sources.get("default"))
        self.with_tools = self.default
        if "tool_use" in sources and not of_processor:
            self.with_tools = self._compiled(sources["tool_use"], needs_tools=True)
        for broken in {self.default, self.with_tools}:
            if not isinstance(broken, BrokenTemplate):
                continue
            if file is not None:
                raise ValueError(f"--chat-template {file}: {broken.reason}")
            logger.warning(
                "The chat template cannot be compiled, so chats are refused: %s, %s; --chat-template FILE "
                "takes another",
                broken.source,
                broken.reason,
            )

    def choose(self, *, tools: bool) -> ChatTemplate:
        """The template of conversations with or without tools.

        Raises:
            RequestError: There is none, or it cannot be compiled.
        """
        template = self.with_tools if tools else self.default
        if isinstance(template, ChatTemplate):
            return template
        if isinstance(template, BrokenTemplate):
            where = template.source
            named = f", template {where.name!r}" if where.name else ""
            reason = (
                f"this model's chat template cannot be compiled: {where.file.name}{named}, {template.reason}"
            )
        elif self._names:
            names = ", ".join(self._names)
            reason = f"this model has several chat templates ({names}), but no default"
        else:
            reason = "this model has no chat template"
        raise RequestError(f"{reason}: {_REMEDY}", param="messages", code="unsupported_task")

    def render(
        self,
        template: ChatTemplate,
        messages: Messages,
        options: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continues: bool = False,
    ) -> str:
        """
        Args:
            messages: In the template's forms.
            options: Other variables; they replace the special tokens of the same name.
            continues: True if an answer continues the last message, with whose text the prompt ends.

        Raises:
            RequestError: The template refuses the conversation, fails, or changes the text to continue.
        """
        from jinja2 import TemplateError

        turns = _marked(messages) if continues else messages
        try:
            text = template.template.render(self._variables(turns, options, tools, add_generation_prompt))
        except TemplateError as exc:
            raise self._refused(f"refuses the messages: {exc}") from exc
        except Exception as exc:
            # The template is a program of others, which these messages make fail in any way.
            raise self._refused(f"fails{_where(exc)} at the messages: {type(exc).__name__}: {exc}") from exc
        return _cut(text, _last_text(messages)) if continues else text

    def _variables(
        self,
        messages: Messages,
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> dict[str, Any]:
        # The last ones no option replaces.
        return {
            "documents": None,
            **self._special_tokens,
            **options,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }

    def _refused(self, why: str) -> RequestError:
        for character, stand_in in self._stand_ins.items():
            why = why.replace(stand_in, character)
        return RequestError(f"the chat template {why}", param="messages", code="invalid_value")

    def _compiled(
        self, source: TemplateSource | None, *, needs_tools: bool = False
    ) -> ChatTemplate | BrokenTemplate | None:
        """
        Args:
            needs_tools: True if there are always tools when it is taken.
        """
        if source is None:
            return None
        from jinja2 import TemplateSyntaxError, meta

        from sglang_omni.preprocessing.template_language import template_environment

        environment = template_environment(self._stand_ins)
        try:
            template = environment.from_string(source.text)
            variables = meta.find_undeclared_variables(environment.parse(source.text))
        except (TemplateSyntaxError, SyntaxError, RecursionError) as exc:
            # Python's compiler, which reads what Jinja writes, has limits of its own.
            line = getattr(exc, "lineno", None)
            return BrokenTemplate(source, f"line {line}: {exc}" if line else f"{type(exc).__name__}: {exc}")

        def render(messages: Messages) -> str:
            has_tools = needs_tools or any(message.get("tool_calls") for message in messages)
            return template.render(self._variables(messages, {}, [PROBE_TOOL] if has_tools else None, True))

        names = frozenset(variables) - set(environment.globals)
        return ChatTemplate(source.text, template, names, forms_of(render))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"--chat-template {file}: cannot be read: {exc}") from exc


def _where(exc: Exception) -> str:
    """The line of the template at which it failed, which Jinja writes into the traceback."""
    lines = [line for frame, line in walk_tb(exc.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f" in line {lines[-1]}" if lines else ""


def _last_text(messages: Messages) -> str:
    """The text of the last message, or of the last of its parts that has one."""
    content = messages[-1]["content"]
    if messages[-1]["role"] == "assistant" and content is not None:
        texts = (
            [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
        )
        if texts and texts[-1].strip():
            return texts[-1]
    raise RequestError(
        "continue_final_message: the last message must be the assistant's, with the text to continue",
        param="continue_final_message",
        code="invalid_value",
    )


def _marked(messages: Messages) -> list[Mapping[str, Any]]:
    """The messages with a mark behind the last text."""
    last = _last_text(messages)
    content = messages[-1]["content"]
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": last + _END}]
    at = max(index for index, part in enumerate(content) if "text" in part)
    marked = [*content[:at], {**content[at], "text": last + _END}, *content[at + 1 :]]
    return [*messages[:-1], {**messages[-1], "content": marked}]


def _cut(text: str, last: str) -> str:
    """A rendered conversation up to the mark, as transformers cuts it."""
    at = text.rfind(_END.strip())
    if at < 0 or last.strip() not in text[:at]:
        raise RequestError(
            "continue_final_message: this model's chat template changes the last message",
            param="continue_final_message",
            code="unsupported_parameter",
        )
    begun = text[:at]
    # The template has trimmed the mark, and would have trimmed the text.
    return begun if text.startswith(_END, at) else begun.rstrip()
