"""Random JSON schemas with everything that answers can be held to, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

_NAMES = ("name", "age", "tags", "x-1", "größe", 'quo"te', "a b", "$id")
_PATTERNS = ("^[a-c]{2,4}$", "^(ab|cd)+x?$", r"^\d{1,3}$", "^[^0-9]{1,3}$", r"^\w\.\w$", "^.{1,3}$", "^x?$")
_FORMATS = ("date", "uuid", "ipv4", "email")


def random_schema(seed: int) -> dict[str, Any]:
    """Answers are short if the model's likeliest tokens close what is open: all sizes have small bounds."""
    rng = random.Random(seed)
    defs: dict[str, Any] = {}
    for index in range(rng.randrange(3)):
        # A definition may refer to those before it.
        defs[f"d{index}"] = _schema(rng, 2, list(defs))
    schema = _object(rng, 3, list(defs)) if rng.random() < 0.7 else _schema(rng, 3, list(defs))
    if defs:
        schema["$defs"] = defs
    if rng.random() < 0.2:
        schema |= {
            "title": "t",
            "description": "d",
            "$schema": "https://json-schema.org/draft/2020-12/schema",
        }
    return schema


def _schema(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    kinds = [_text, _text, _integer, _number, _enum, _const, _flag]
    if depth > 0:
        kinds += [_object, _object, _array, _array, _any_of, _nullable]
    if defs:
        kinds += [_ref, _ref]
    return rng.choice(kinds)(rng, depth - 1, defs)


def _text(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    match rng.randrange(4):
        case 0:
            return {"type": "string", "pattern": rng.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": rng.choice(_FORMATS)}
        case 2:
            least = rng.randrange(3)
            return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(4)}
    return {"type": "string", "maxLength": rng.randrange(6)}


def _integer(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    least = rng.randrange(-1000, 1000)
    schema: dict[str, Any] = {"type": "integer"}
    if rng.random() < 0.7:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = least
    if rng.random() < 0.7:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = least + 20 + rng.randrange(1500)
    return schema


def _number(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    least = round(rng.uniform(-50, 50), rng.randrange(3))
    schema: dict[str, Any] = {"type": "number"}
    if rng.random() < 0.6:
        schema["minimum"] = least
    if rng.random() < 0.6:
        schema["maximum"] = least + rng.choice([0.5, 3, 100.25])
    return schema


def _enum(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    values: list[Any] = ["a", "b\n", "é", 'q"', 1, -2.5, None, True, [1, "x"], {"k": "v"}]
    return {"enum": rng.sample(values, rng.randrange(1, 5))}


def _const(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    value: Any = rng.choice(["yes", 7, None, [1]])
    return {"type": "string", "const": value} if isinstance(value, str) else {"const": value}


def _flag(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null"])}


def _object(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randrange(1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(rng, depth, defs) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    match rng.randrange(4):
        case 0:
            schema["additionalProperties"] = False
        case 1 if depth > 0:
            schema["additionalProperties"] = _schema(rng, 0, [])
            schema["maxProperties"] = len(names) + 1
    return schema


def _array(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    if rng.random() < 0.3:
        items = [_schema(rng, depth, defs) for _ in range(rng.randrange(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    least = rng.randrange(3)
    return {
        "type": "array",
        "items": _schema(rng, depth, defs),
        "minItems": least,
        "maxItems": least + rng.randrange(3),
    }


def _any_of(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    return {"anyOf": [_schema(rng, depth, defs) for _ in range(rng.randrange(1, 4))]}


def _nullable(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    return {"type": ["string", "null"], "maxLength": 3}


def _ref(rng: random.Random, depth: int, defs: list[str]) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{rng.choice(defs)}"}
