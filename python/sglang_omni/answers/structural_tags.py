"""What an answer must match, as xgrammar's structural tag: forced calls, strict arguments, and reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_omni.answers.formats import CallFormat, Tools
from sglang_omni.proto import RequestError

Format = dict[str, Any]
_ANY_OBJECT: Format = {"type": "object"}


def forced_calls(form: CallFormat, tools: Tools, *, parallel: bool) -> Format:
    """Calls and nothing else; the arguments match the tools' schemas.

    Args:
        tools: Those that may be called.
        parallel: True if there may be several.
    """
    calls: Format = {
        "type": "tags_with_separator",
        "tags": [_tag(form, tool, strict=True) for tool in tools],
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    before, after = form.around
    around = [{"type": "const_string", "value": text} for text in form.around]
    return _sequence([*(around[:1] if before else ()), calls, *(around[1:] if after else ())])


def strict_calls(form: CallFormat, tools: Tools, *, parallel: bool) -> Format:
    """Text with calls or without; the arguments of tools with ``strict`` match their schemas."""
    before, after = form.around
    return {
        "type": "triggered_tags",
        "triggers": [form.trigger],
        "tags": [_tag(form, tool, strict=is_strict(tool), around=(before, after)) for tool in tools],
        "at_least_one": False,
        "stop_after_first": not parallel,
    }


def is_strict(tool: Mapping[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def asked_for(params: Mapping[str, Any]) -> Format | None:
    """What the request's own parameters want the answer to match; None for anything.

    Raises:
        RequestError: A parameter is not the JSON text that it must be.
    """
    if (pattern := params.get("regex")) is not None:
        return {"type": "regex", "pattern": pattern}
    if (grammar := params.get("ebnf")) is not None:
        return {"type": "grammar", "grammar": grammar}
    if (schema := params.get("json_schema")) is not None:
        return {"type": "json_schema", "json_schema": _parsed("json_schema", schema)}
    if (tag := params.get("structural_tag")) is not None:
        parsed = _parsed("structural_tag", tag)
        if isinstance(parsed, dict) and isinstance(parsed.get("format"), dict):
            wanted: Format = parsed["format"]
            return wanted
        raise RequestError(
            "structural_tag: needs a format, to go with tools or after reasoning",
            param="structural_tag",
            code="invalid_value",
        )
    return None


def _parsed(name: str, text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError) as exc:
        raise RequestError(f"{name}: must be JSON text: {exc}", param=name, code="invalid_value") from exc


def either(first: Format, second: Format) -> Format:
    return {"type": "or", "elements": [first, second]}


def after_thinking(marks: tuple[str, str], answer: Format, *, inside: bool) -> Format:
    """``answer`` after reasoning, of which the model may have none.

    Args:
        inside: The prompt ends within reasoning, which must then end.
    """
    begin, end = marks
    space: Format = {"type": "regex", "pattern": r"\s{0,4}"}
    thought: Format = {
        "type": "tag",
        "begin": "" if inside else begin,
        "content": {"type": "any_text"},
        "end": end,
    }
    if inside:
        return _sequence([thought, space, answer])
    return either(_sequence([thought, space, answer]), answer)


def structural_tag(answer: Format) -> str:
    return json.dumps({"type": "structural_tag", "format": answer}, ensure_ascii=False)


def _tag(
    form: CallFormat, tool: Mapping[str, Any], *, strict: bool, around: tuple[str, str] = ("", "")
) -> Format:
    function = tool["function"]
    name = function["name"]
    # A tool without parameters takes none.
    schema = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "tag",
        "begin": around[0] + form.begin.format(name=json.dumps(name, ensure_ascii=False), plain=name),
        "content": {
            "type": "json_schema",
            "json_schema": schema if strict else _ANY_OBJECT,
            "style": form.style,
            # A small model may else write white space and nothing more.
            "max_whitespace_cnt": 2,
        },
        "end": form.end + around[1],
    }


def _sequence(elements: Sequence[Format]) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}
