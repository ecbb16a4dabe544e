"""A checkpoint's chat templates, rendered as transformers renders them.

Uses only ``jinja2``: importing transformers takes longer than loading the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class ChatTemplate:
    """
    Attributes:
        source: As the checkpoint has it.
        template: Compiled.
        variables: What a request may set, such as ``tools`` or ``enable_thinking``.
    """

    source: str
    template: Template
    variables: frozenset[str]


class ChatTemplates:
    """The templates of one checkpoint directory: that of ``chat_template.jinja``, ``chat_template.json`` or
    ``tokenizer_config.json``, and the one for tools if there is one of its own.

    Attributes:
        default: None if the checkpoint has no chat template.
        with_tools: For conversations with tools.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        """
        Args:
            settings: Of ``tokenizer_config.json``.
        """
        sources = _sources(directory, settings)
        self._special_tokens = _special_tokens(settings)
        self.default = compile_chat_template(sources["default"]) if "default" in sources else None
        tools = sources.get("tool_use")
        self.with_tools = compile_chat_template(tools) if tools else self.default

    def render(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """
        Raises:
            jinja2.TemplateError: The template refuses the conversation.
        """
        # The request's options come first, so that they cannot replace the other variables.
        variables = {
            **options,
            **self._special_tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        if tools is not None:
            variables["tools"] = tools
        return template.template.render(variables)


def compile_chat_template(source: str) -> ChatTemplate:
    """Compiles a chat template with the functions and white-space rules of transformers."""
    from jinja2 import TemplateError, meta
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    variables = meta.find_undeclared_variables(environment.parse(source)) - set(environment.globals)
    return ChatTemplate(source, environment.from_string(source), frozenset(variables))


def _sources(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name."""
    file = directory / "chat_template.jinja"
    if file.exists():
        return {"default": file.read_text(encoding="utf-8")}
    source = settings.get("chat_template")
    other = directory / "chat_template.json"
    if not source and other.exists():
        source = json.loads(other.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(source, list):
        return {entry["name"]: entry["template"] for entry in source}
    return {"default": source} if source else {}


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token`` and the like for templates; stored as text or as ``{"content": text}``."""
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens
