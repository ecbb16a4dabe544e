"""Where a checkpoint keeps its chat templates and the tokens that they name, in transformers' order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TemplateSource:
    """A chat template as the checkpoint has it.

    Attributes:
        text: Jinja.
        file: The file that it is in.
        name: Of several in one file.
    """

    text: str
    file: Path
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.file}, template {self.name!r}" if self.name else str(self.file)


def template_sources(
    directory: Path, settings: Mapping[str, Any], *, of_processor: bool = False
) -> dict[str, TemplateSource]:
    """The chat templates by name; ``default`` is that of conversations without tools.

    A tokenizer's are those of ``chat_template.jinja`` and ``additional_chat_templates/NAME.jinja``; if there
    are no such files, those of ``tokenizer_config.json``. A processor's is that of ``processor_config.json``,
    else of ``chat_template.json``, else of the files. Where transformers finds none, the other places count.

    Args:
        directory: Of the checkpoint.
        settings: Of ``tokenizer_config.json``.
        of_processor: True if transformers would make prompts with the model's processor.
    """
    files = {
        file.name.removesuffix(".jinja"): TemplateSource(file.read_text(encoding="utf-8"), file)
        for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))
    }
    file = directory / "chat_template.jinja"
    if file.is_file():
        files["default"] = TemplateSource(file.read_text(encoding="utf-8"), file)
    of_tokenizer = _in_json(settings.get("chat_template"), directory / "tokenizer_config.json")
    processor, legacy = (
        _of_file(directory / name) for name in ("processor_config.json", "chat_template.json")
    )
    order = (processor, legacy, files, of_tokenizer) if of_processor else (files, of_tokenizer, legacy)
    return next(filter(None, order), {})


def special_tokens(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The tokenizer's named tokens, such as ``bos_token`` or ``image_token``: variables of templates.

    Args:
        directory: Of the checkpoint.
        settings: Of ``tokenizer_config.json``.
    """
    named = dict(settings)
    if "added_tokens_decoder" not in settings:
        # Written by older versions of transformers, and read only where the newer field is missing.
        older = directory / "special_tokens_map.json"
        named |= json.loads(older.read_text(encoding="utf-8")) if older.is_file() else {}
    tokens = {name: token for name, token in named.items() if name.endswith("_token")}
    if isinstance(extra := named.get("extra_special_tokens"), Mapping):
        tokens |= extra
    texts = {name: _text(token) for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _in_json(templates: Any, file: Path) -> dict[str, TemplateSource]:
    if isinstance(templates, Mapping):
        return {name: TemplateSource(text, file, name) for name, text in templates.items()}
    if isinstance(templates, list):
        return {each["name"]: TemplateSource(each["template"], file, each["name"]) for each in templates}
    return {"default": TemplateSource(templates, file)} if templates else {}


def _of_file(file: Path) -> dict[str, TemplateSource]:
    if not file.is_file():
        return {}
    return _in_json(json.loads(file.read_text(encoding="utf-8")).get("chat_template"), file)


def _text(value: Any) -> str | None:
    """A token's text, which is stored as it is or as ``{"content": text}``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
