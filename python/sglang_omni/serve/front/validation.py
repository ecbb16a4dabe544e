"""Turns pydantic's errors into messages for callers: the field, what is wrong, and what would be right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from sglang_omni.config.nearest import nearest
from sglang_omni.proto import RequestError, shortened
from sglang_omni.serve.models.fields import TAG, UNSUPPORTED, UNSUPPORTED_FIELDS

NO_OBJECT = "the body must be a JSON object"

# Sentences for pydantic's kinds of errors, whose own texts speak of Python's types.
_SENTENCES: Mapping[str, str | Callable[[dict[str, Any]], str]] = {
    "missing": "is required",
    "string_type": "must be text",
    "string_unicode": "must be valid Unicode",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_too_short": lambda c: _at_least(c["min_length"], "character"),
    "string_too_long": lambda c: f"may have at most {_counted(c['max_length'], 'character')}",
    "union_tag_invalid": lambda c: f"must have as its type {c['expected_tags']}",
    "union_tag_not_found": lambda c: "needs a type",
    "too_short": lambda c: _at_least(c["min_length"], "item"),
    "too_long": lambda c: f"may have at most {_counted(c['max_length'], 'item')}, has {c['actual_length']}",
    "greater_than": lambda c: f"must be more than {c['gt']:g}",
    "greater_than_equal": lambda c: f"must be at least {_number(c['ge'])}",
    "less_than": lambda c: f"must be less than {_number(c['lt'])}",
    "less_than_equal": lambda c: f"must be at most {_number(c['le'])}",
    "literal_error": lambda c: f"must be {c['expected']}",
    "none_required": "not supported here; leave it out",
}
# Errors of a value and not of its type.
_OF_VALUES = frozenset(
    {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "literal_error", "int_parsing"}
    | {"float_parsing", "bool_parsing"}
)
_LONGEST_VALUE = 40
# For a wrong name in a dict, not a wrong value.
_KEY = "[key]"
# What pydantic puts among the fields and is none: that mark, and what realtime's unions are of.
_NO_FIELDS = frozenset(
    {
        *(_KEY, "server_vad", "semantic_vad", "audio/pcm", "audio/pcmu", "audio/pcma"),
        *("constrained-int", "constrained-str", "VoiceId", "ChosenFunction"),
        *("literal['inf']", "literal['auto','none','required']"),
    }
)
# How many of the other fields at fault are named, and the most characters of a name.
_MOST_NAMED = 10
_LONGEST_NAME = 100
# "min_tokens" is not "max_tokens" misspelled.
_SIMILAR = 0.82


def validation_error(errors: Sequence[Any], model: type[BaseModel] | None = None) -> RequestError:
    """A RequestError for the first of pydantic's errors, which also names the other fields at fault.

    Args:
        errors: From ``ValidationError.errors()``.
        model: The body's model; its fields are suggested for an unknown one.
    """
    first = next((error for error in errors if error["type"] != "extra_forbidden"), errors[0])
    context = first.get("ctx") or {}
    param = field_path(first["loc"])
    if first["type"] == "extra_forbidden":
        message, code = _unknown(param, first["loc"], model)
    else:
        message = f"{param}: {_sentence(first, context)}" if param else NO_OBJECT
        code = _code(first["type"])
    others = sorted({field_path(error["loc"]) for error in errors} - {param, ""})
    if others:
        named = ", ".join(shortened(name, _LONGEST_NAME) for name in others[:_MOST_NAMED])
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        message += f" (also wrong: {named}{more})"
    return RequestError(message, param=param or None, code=code)


def field_path(loc: Iterable[str | int]) -> str:
    """``("body", "messages", 0, "content")`` as ``messages[0].content``."""
    path = ""
    for index, item in enumerate(loc):
        if isinstance(item, int):
            path += f"[{item}]"
        elif not (item.startswith(TAG) or item in _NO_FIELDS or (index == 0 and item == "body")):
            path += f".{item}" if path else item
    return path


def _sentence(error: Mapping[str, Any], context: dict[str, Any]) -> str:
    sentence = _SENTENCES.get(error["type"])
    if sentence is None:
        return str(error["msg"]).removeprefix("Value error, ")
    given = error.get("input", "")
    if given is None and error["type"] != "missing":
        return "must not be null"
    text = sentence if isinstance(sentence, str) else sentence(context)
    return text + _instead(error["type"], given)


def _instead(kind: str, given: Any) -> str:
    """What was given, if it says more than the field's name does."""
    if kind == "string_too_long":
        return f", has {len(given)}"
    is_type = kind.endswith("_type") or kind == "int_from_float"
    if not is_type and kind not in _OF_VALUES:
        return ""
    if isinstance(given, list | dict):
        return f", not {'a list' if isinstance(given, list) else 'an object'}"
    written = repr(given) if isinstance(given, str) else json.dumps(given, default=str)
    if len(written) > _LONGEST_VALUE:
        return ", not text" if is_type and isinstance(given, str) else ""
    return f", not {'the text ' if is_type and isinstance(given, str) else ''}{written}"


def _code(kind: str) -> str:
    if kind == "missing":
        return "missing_required_parameter"
    if kind in (UNSUPPORTED, "none_required"):
        return "unsupported_value"
    return "invalid_type" if kind.endswith("_type") or kind == "int_from_float" else "invalid_value"


def _unknown(param: str, loc: Sequence[str | int], model: type[BaseModel] | None) -> tuple[str, str]:
    name, param = str(loc[-1]), shortened(param, _LONGEST_NAME)
    if name in UNSUPPORTED_FIELDS:
        return f"{param}: not supported here; leave it out", "unsupported_parameter"
    near = nearest(name, _fields_beside(loc, model), cutoff=_SIMILAR)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"unknown field {param!r}{hint}", "unknown_parameter"


def _fields_beside(loc: Sequence[str | int], model: type[BaseModel] | None) -> list[str]:
    """The field names of the object in which ``loc`` ends."""
    models = [model] if model else []
    for name in loc[:-1]:
        fields = [each.model_fields[name] for each in models if name in each.model_fields]
        if fields:  # not an index, a tag, or the body itself
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return sorted({name for each in models for name in each.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _at_least(count: int, what: str) -> str:
    return "must not be empty" if count == 1 else f"must have at least {_counted(count, what)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _number(value: float) -> str:
    """A bound as people write it: 2**31 in full."""
    return str(value) if isinstance(value, int) else f"{value:g}"
