"""The language of chat templates: Jinja with what transformers adds to it, so that prompts are the same.

transformers' own renderer, ``transformers.utils.chat_template_utils.render_jinja_template``, is public, but
its import costs a process that has neither torch nor transformers 2 s and 48 MiB (version 5.19; 29 MiB
before), and it knows nothing of hidden control tokens. The two are held equal by
``tests/unit/preprocessing/test_chat_templates_rendered.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# An escape of JSON text, of one character of the text or of half of one.
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|.)")


class _Generation(Extension):
    """``{% generation %}``: what the assistant wrote. For training; a prompt has the same text without it."""

    tags = {"generation"}  # noqa: RUF012  as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, as in transformers: variables that are set inside are gone behind it.
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


def template_environment(stand_ins: Mapping[str, str]) -> ImmutableSandboxedEnvironment:
    """The environment that compiles chat templates.

    Args:
        stand_ins: Of characters that are hidden in the texts of messages, by character, as
            ``TextTokenizer.stand_ins``.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json(stand_ins)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(stand_ins: Mapping[str, str]) -> Callable[..., str]:
    """The filter ``tojson`` of transformers, which escapes no HTML. Hidden characters are sorted and escaped
    as those that they stand for, and stay hidden."""
    hide = str.maketrans(dict(stand_ins))
    show = str.maketrans({stand_in: character for character, stand_in in stand_ins.items()})

    def written(stand_in: str, *, ensure_ascii: bool) -> str:
        return json.dumps(stand_in.translate(show), ensure_ascii=ensure_ascii)[1:-1].translate(hide)

    plain = str.maketrans({each: written(each, ensure_ascii=False) for each in stand_ins.values()})
    escaped = {f"{ord(each):04x}": written(each, ensure_ascii=True) for each in stand_ins.values()}

    def by_key(value: Any) -> Any:
        if isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: _shown(item[0], show))
            return {key: by_key(item) for key, item in items}
        return [by_key(item) for item in value] if isinstance(value, list | tuple) else value

    def tojson(
        x: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        value = by_key(x) if sort_keys else x
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators)
        if ensure_ascii:
            return _ESCAPE.sub(lambda escape: escaped.get(escape[1] or "", escape[0]), text)
        return text.translate(plain)

    return tojson


def _shown(key: Any, show: Mapping[int, str]) -> Any:
    return key.translate(show) if isinstance(key, str) else key
