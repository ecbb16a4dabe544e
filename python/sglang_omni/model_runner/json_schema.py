"""Which JSON schemas can be held to: xgrammar passes over what it does not know, and this refuses it.

As of xgrammar 0.2. A schema that passes gives answers that are valid by JSON Schema 2020-12, except that
``oneOf`` is read as ``anyOf``, and ``format`` holds only for the names that xgrammar knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from sglang_omni.proto import RequestError

# Of arrays and objects in one another: xgrammar follows them by recursion.
MAX_DEPTH = 100

_UNKNOWN = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains"),
    *("minContains", "maxContains", "multipleOf", "$dynamicRef", "$recursiveRef"),
)
# Each decides alone what matches; other constraints beside it are passed over.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_OF_TYPES = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "unevaluatedProperties"),
    ),
}
# What a JSON string may have without an escape.
_CHARACTER = "[ !#-\\[\\]-\U0010ffff]"
_REPEATS = re.compile(r"\{\d*,?(\d+)\}|\{(\d+),\}")
_CONSTRAINTS = frozenset(name for names in _OF_TYPES.values() for name in names)
_TYPES: dict[str, Any] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def held_schema(text: str) -> str:
    """A schema that means the same and that xgrammar holds to.

    Raises:
        RequestError: The text is no JSON schema, or has a constraint that answers cannot be held to.
    """
    schema = _parsed("json_schema", text)
    _check(schema, "json_schema", "json_schema")
    return json.dumps(schema)


def held_structural_tag(text: str) -> str:
    """``held_schema`` for the schemas inside a structural tag.

    Raises:
        RequestError: The text is no JSON object, or a schema in it cannot be held to.
    """
    tag = _parsed("structural_tag", text)
    for schema in _schemas_in(tag):
        _check(schema, "structural_tag.json_schema", "structural_tag")
    return json.dumps(tag)


def _parsed(param: str, text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        _refuse(param, f"{param}: more than {MAX_DEPTH} levels deep")
    except ValueError as exc:
        _refuse(param, f"{param}: no JSON: {exc}")
    if not isinstance(value, dict):
        _refuse(param, f"{param} must be a JSON object")
    level: list[Any] = [value]
    depth = 0
    while level:
        if depth > MAX_DEPTH:
            _refuse(param, f"{param}: more than {MAX_DEPTH} levels deep")
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        depth += 1
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _schemas_in(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "json_schema" and isinstance(inner, dict):
                yield inner
            else:
                yield from _schemas_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _schemas_in(inner)


def _check(schema: Any, where: str, param: str) -> None:
    if not isinstance(schema, dict):
        return
    for name in _UNKNOWN:
        if name in schema:
            _refuse(param, f"{where}: {name!r} is not supported; leave it out")
    if schema.get("uniqueItems"):
        _refuse(param, f"{where}: 'uniqueItems' is not supported; leave it out")
    alone = [name for name in _ALONE if name in schema]
    if alone:
        _check_alone(schema, alone, where, param)
    else:
        _check_types(schema, where, param)
    for name, inner in _inner(schema):
        _check(inner, f"{where}.{name}", param)


def _check_alone(schema: Mapping[str, Any], alone: list[str], where: str, param: str) -> None:
    name, *others = alone
    # A type beside an enum or a const says nothing new, if they agree.
    kept = ("type",) if name in ("enum", "const") else ()
    beside = [*others, *(key for key in schema if key in _CONSTRAINTS or (key == "type" and key not in kept))]
    if beside:
        _refuse(param, f"{where}: {beside[0]!r} beside {name!r} is not supported; write it inside")
    if name == "$ref" and schema["$ref"] != "#" and not str(schema["$ref"]).startswith("#/"):
        _refuse(param, f"{where}: '$ref' must be a path inside the schema, as '#/$defs/name'")
    if name == "allOf" and isinstance(schema["allOf"], list) and len(schema["allOf"]) > 1:
        _refuse(param, f"{where}: 'allOf' of several schemas is not supported; write them as one")
    if name in ("enum", "const") and "type" in schema:
        values = schema["enum"] if name == "enum" else [schema["const"]]
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for value in values if isinstance(values, list) else ():
            if not any(_has_type(value, each) for each in types):
                _refuse(param, f"{where}: {value!r:.100} in {name!r} is not of type {schema['type']!r}")


def _check_types(schema: dict[str, Any], where: str, param: str) -> None:
    for name in (*_OF_TYPES["string"], *_OF_TYPES["number"]):
        if name in schema and "type" not in schema:
            _refuse(param, f"{where}: {name!r} without a 'type' is not supported; add it")
    texts = [name for name in ("pattern", "format") if name in schema]
    lengths = [name for name in ("minLength", "maxLength") if name in schema]
    if texts and len(texts) + len(lengths) > 1:
        _refuse(param, f"{where}: {[*texts, *lengths][1]!r} beside {texts[0]!r} is not supported")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and ("." in pattern or "[^" in pattern):
        for repeats in _REPEATS.finditer(pattern):
            if int(repeats[1] or repeats[2]) > 127:
                # xgrammar then takes long, and lets raw control characters in.
                _refuse(
                    param, f"{where}: {repeats[0]} in a pattern with '.' or '[^' is not supported: up to 127"
                )
    if lengths and not texts:
        _write_lengths(schema)
    _check_properties(schema, where, param)


def _check_properties(schema: Mapping[str, Any], where: str, param: str) -> None:
    named, patterns = schema.get("properties", {}), schema.get("patternProperties")
    if isinstance(patterns, Mapping) and ("properties" in schema or len(patterns) > 1):
        _refuse(param, f"{where}: 'patternProperties' beside other properties is not supported")
    if "propertyNames" in schema and "properties" in schema:
        _refuse(param, f"{where}: 'propertyNames' beside 'properties' is not supported")
    required = schema.get("required", ())
    for name in required if isinstance(required, list) else ():
        if isinstance(named, Mapping) and name not in named:
            _refuse(param, f"{where}: {name!r:.100} in 'required' must be among 'properties'")
    free = schema.get("additionalProperties") or "patternProperties" in schema or "properties" not in schema
    least = schema.get("minProperties", 0)
    if free and isinstance(least, int) and least > 1:
        # Free names may come twice.
        _refuse(param, f"{where}: 'minProperties' above 1 is supported only if all properties are named")


def _write_lengths(schema: dict[str, Any]) -> None:
    """Replaces a text's bounds by a pattern: with the bounds, xgrammar lets raw control characters in."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if isinstance(least, int) and (most == "" or (isinstance(most, int) and least <= most)):
        schema.pop("minLength", None)
        schema.pop("maxLength", None)
        schema["pattern"] = f"^{_CHARACTER}{{{least},{most}}}$"


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in ("properties", "patternProperties", "$defs", "definitions"):
        inner = schema.get(name)
        if isinstance(inner, Mapping):
            yield from ((f"{name}.{key}", value) for key, value in inner.items())
    for name in (
        "items",
        "additionalProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    ):
        yield name, schema.get(name)
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner = schema.get(name)
        if isinstance(inner, list):
            yield from ((f"{name}[{index}]", value) for index, value in enumerate(inner))


def _has_type(value: Any, name: Any) -> bool:
    if name in ("integer", "number"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, _TYPES.get(str(name), object))


def _refuse(param: str, message: str) -> NoReturn:
    raise RequestError(message, param=param, code="invalid_value")
