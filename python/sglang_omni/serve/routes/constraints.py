"""What an answer must match, from any of the names that clients have for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from sglang_omni.generation.request import SamplingParams
from sglang_omni.proto import RequestError
from sglang_omni.serve.models.constraints import (
    ConstraintFields,
    GrammarFields,
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuralTagFormat,
    StructuredOutputs,
)

ANY_OBJECT = '{"type": "object"}'
# The parameters that not every pipeline takes.
_GUIDING = ("logit_bias", "logprobs", "prompt_logprobs", "json_schema", "regex", "ebnf", "structural_tag")


class Constraint(NamedTuple):
    """
    Attributes:
        kind: The field of ``SamplingParams``.
        text: Its value.
        param: The field of the request that asks for it.
    """

    kind: str
    text: str
    param: str

    def apply(self, sampling: SamplingParams) -> SamplingParams:
        constrained = replace(sampling)
        setattr(constrained, self.kind, self.text)
        return constrained


def constraint_of(body: GrammarFields, prefix: str = "") -> Constraint | None:
    """What the answer to a request must match, if anything.

    Args:
        body: The request, or the part of it that has these fields.
        prefix: Precedes the fields' names in errors.

    Raises:
        RequestError: Two fields are given, or a JSON text is none.
    """
    found = [
        Constraint(kind, _as_text(value, f"{prefix}{kind}"), f"{prefix}{kind}")
        for kind in ("json_schema", "regex", "ebnf", "structural_tag")
        if (value := getattr(body, kind)) is not None
    ]
    if isinstance(body, ConstraintFields):
        found += _of_format(body, f"{prefix}response_format")
        if body.structured_outputs is not None:
            found += _of_structured(body.structured_outputs, f"{prefix}structured_outputs")
    if len(found) > 1:
        raise RequestError(
            f"{found[0].param} and {found[1].param} both say what the answer must match; give one",
            param=found[1].param,
            code="invalid_value",
        )
    return found[0] if found else None


def guiding_params(sampling: SamplingParams) -> dict[str, Any]:
    """The parameters that a pipeline must be checked to take, as ``AppState.check_params`` wants them."""
    return {name: value for name in _GUIDING if (value := getattr(sampling, name)) not in (None, {})}


@contextmanager
def renamed_params(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors name fields as the request does. ``names``: by the names that stages know."""
    try:
        yield
    except RequestError as exc:
        name = names.get(exc.param or "")
        if name is None or exc.param is None:
            raise
        message = re.sub(rf"(?<!\w){re.escape(exc.param)}(?!\w)", name, exc.message)
        raise RequestError(message, param=name, code=exc.code, status=exc.status) from exc


def _of_format(body: ConstraintFields, param: str) -> list[Constraint]:
    match body.response_format:
        case JsonObjectFormat():
            return [Constraint("json_schema", ANY_OBJECT, param)]
        case JsonSchemaFormat(json_schema=named):
            return [Constraint("json_schema", json.dumps(named.schema_, ensure_ascii=False), param)]
        case StructuralTagFormat() as tag:
            return [Constraint("structural_tag", tag.model_dump_json(exclude_none=True), param)]
    return []


def _of_structured(fields: StructuredOutputs, param: str) -> list[Constraint]:
    found = []
    if fields.json_ is not None:
        where = f"{param}.json"
        found.append(Constraint("json_schema", _as_text(fields.json_, where), where))
    if fields.json_object:
        found.append(Constraint("json_schema", ANY_OBJECT, f"{param}.json_object"))
    if fields.regex is not None:
        found.append(Constraint("regex", fields.regex, f"{param}.regex"))
    if fields.choice is not None:
        found.append(Constraint("ebnf", one_of(fields.choice), f"{param}.choice"))
    if fields.grammar is not None:
        found.append(Constraint("ebnf", fields.grammar, f"{param}.grammar"))
    if fields.structural_tag is not None:
        where = f"{param}.structural_tag"
        found.append(Constraint("structural_tag", _as_text(fields.structural_tag, where), where))
    return found


def one_of(choices: list[str]) -> str:
    """A grammar of these texts."""
    return "root ::= " + " | ".join(json.dumps(choice) for choice in choices)


def _as_text(value: str | dict[str, Any], param: str) -> str:
    """JSON text that was given as an object or as text; other texts as they are."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if param.endswith(("json_schema", "json", "structural_tag")):
        try:
            json.loads(value)
        except ValueError as exc:
            raise RequestError(f"{param} is not valid JSON: {exc}", param=param, code="invalid_json") from exc
    return value
