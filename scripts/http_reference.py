"""Write docs/reference/http-api.md: every route of the server, and every field of what it takes.

Routes and fields are those of the app and its models; what a route answers is in ``http_reference_answers``.
Run it after a change of either; a test compares its output with the committed file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from http_reference_answers import ANSWERS, GROUPS, SERVER_EVENTS
from pydantic import BaseModel

from sglang_omni.serve.app import create_app
from sglang_omni.serve.models import speech_stream, transcription_stream
from sglang_omni.serve.models.constraints import ConstraintFields
from sglang_omni.serve.models.fields import ExtensionFields, SamplingFields
from sglang_omni.serve.models.tools import ToolFields
from sglang_omni.serve.realtime.config import SessionConfig
from sglang_omni.serve.realtime.events import EVENTS

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "reference" / "http-api.md"
HEAD = """\
# The HTTP API

Every route of the server, and every field that it takes: its type and range, its default, and what it does.
[The server](../server.md) says how they are used, [speech](../speech.md) and [realtime](../realtime.md) have
examples, and [the router](../router.md#endpoints) lists what it adds.

Bodies are JSON, sent with `Content-Type: application/json`, unless a route says otherwise. A field that is
not listed is refused with a 400 that names it, and so is a value out of range; `null` for an optional field
counts as left out. What the pipeline cannot do is refused likewise. "Only `x`" marks a field of other servers
that is accepted with that value alone. [All errors](../server.md#errors) have OpenAI's form.

`GET /` is the [page](../realtime.md#on-the-page), and `GET /openapi.json` is this page for programs.
"""
Schema = Mapping[str, Any]
_MESSAGES: Mapping[str, Mapping[str, type[BaseModel]]] = {
    "/v1/realtime": EVENTS,
    "/v1/audio/speech/stream": speech_stream.MESSAGES,
    "/v1/audio/transcriptions/stream": transcription_stream.MESSAGES,
}
_SHARED = (ToolFields, SamplingFields, ConstraintFields, ExtensionFields)


class Reference:
    """The page as it grows. Models that fields refer to are written at the end, each once."""

    def __init__(self) -> None:
        self.lines = [HEAD]
        self._models: dict[str, Schema] = {}
        self._named: list[str] = []

    def add(self, *lines: str) -> None:
        """Append lines of Markdown."""
        self.lines += lines

    def fields(self, schema: Schema, *, leave_out: tuple[str, ...] = ()) -> None:
        """A table of an object's fields; ``leave_out``: those that are told elsewhere."""
        self.know(schema.get("$defs", {}))
        rows = [
            self._row(name, field, name in schema.get("required", ()))
            for name, field in schema.get("properties", {}).items()
            if name not in leave_out
        ]
        if rows:
            self.add("", "| field | type | default | what it does |", "|---|---|---|---|", *rows)

    def body(self, schema: Schema) -> None:
        """The fields of a request's body, which may be a reference to a model; its own before shared ones."""
        name = _ref(schema)
        model = self._models[name] if name is not None else schema
        own_first = dict(sorted(model["properties"].items(), key=_is_shared))
        self.fields({**model, "properties": own_first})

    def know(self, models: Mapping[str, Schema]) -> None:
        """Models that fields may refer to.

        Raises:
            ValueError: Two different models have one name.
        """
        for name, model in models.items():
            if self._models.setdefault(name, model) != model:
                raise ValueError(f"two models are called {name}")

    def objects(self) -> None:
        """The models that fields referred to, with those that these refer to."""
        self.add("", "## Objects")
        done: set[str] = set()
        while left := sorted(set(self._named) - done):
            for name in left:
                done.add(name)
                schema = self._models[name]
                self.add("", f"### `{name}`")
                if about := schema.get("description"):
                    self.add("", _line(about))
                self.fields(schema)

    def _row(self, name: str, field: Schema, is_required: bool) -> str:
        for kind in (field, *field.get("anyOf", ())):
            if "const" in kind and "description" not in field:
                return f"| `{name}` | `{_json(kind['const'])}` | {'required' if is_required else ''} | |"
        default = "required" if is_required else _default(field.get("default"))
        about = _line(_description(field)).replace("|", "\\|")
        return f"| `{name}` | {self._kind(field)} | {default} | {about} |"

    def _kind(self, field: Schema) -> str:
        if (name := _ref(field)) is not None:
            self._named.append(name)
            return f"[`{name}`](#{name.lower()})"
        if choices := field.get("anyOf") or field.get("oneOf"):
            kinds = dict.fromkeys(self._kind(each) for each in choices if each.get("type") != "null")
            return " or ".join(kinds)
        if "enum" in field:
            return " or ".join(f"`{_json(value)}`" for value in field["enum"])
        if "const" in field:
            return f"`{_json(field['const'])}`"
        match field.get("type"):
            case "string":
                return "file" if field.get("format") == "binary" else f"text{_length(field, 'characters')}"
            case "integer":
                return f"whole number{_range(field)}"
            case "number":
                return f"number{_range(field)}"
            case "boolean":
                return "true or false"
            case "array":
                kind, length = self._kind(field.get("items", {})), _length(field, "", "Items")
                return f"list of {length.removeprefix(', ')}: {kind}" if length else f"list of {kind}"
            case "object":
                return "object"
        return "" if "description" in field else "any"


def _ref(field: Schema) -> str | None:
    """The name of the model that a schema refers to."""
    found = field.get("$ref")
    return None if found is None else str(found).rsplit("/", 1)[-1]


def _description(field: Schema) -> str:
    """What a field does; of one that may be null, its other type may say it."""
    said = [each["description"] for each in (field, *field.get("anyOf", ())) if "description" in each]
    assert said, f"a field has no description: {field}"
    return str(said[0])


def _line(text: str) -> str:
    """A docstring as a line of Markdown."""
    return " ".join(text.split()).replace("``", "`")


def _is_shared(field: tuple[str, Schema]) -> bool:
    """Whether several routes have it: such fields come last."""
    return any(field[0] in model.model_fields for model in _SHARED)


def _json(value: object) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _default(value: object) -> str:
    if value is None or value == "" or isinstance(value, dict | list):
        return ""
    return f"`{_json(value)}`"


def _range(field: Schema) -> str:
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum", field.get("exclusiveMaximum"))
    # 2**31 and 2**63 are limits of machines, which tell a reader nothing.
    high = None if high is not None and high >= 2**31 - 1 else high
    low = None if low is not None and low <= -(2**31) else low
    if high is None:
        return "" if low is None else f", at least {low:,.10g}"
    if low is None:
        return f", at most {high:,.10g}"
    if "exclusiveMinimum" in field:
        return f", above {low:,.10g}, at most {high:,.10g}"
    return f", {low:,.10g} to {high:,.10g}"


def _length(field: Schema, what: str, unit: str = "Length") -> str:
    low, high = field.get(f"min{unit}", 0), field.get(f"max{unit}")
    if high is None:
        return ""
    bounds = f"at most {high:,}" if low in (0, 1) else f"{low} to {high:,}"
    return f", {bounds} {what}".rstrip()


def _parameters(operation: Schema) -> Iterator[str]:
    for each in operation.get("parameters", ()):
        schema = each["schema"]
        kind = Reference()._kind(schema)
        default = _default(schema.get("default"))
        where = "in the path" if each["in"] == "path" else f"in the query{f', {default}' if default else ''}"
        yield f"- `{each['name']}`, {where}: {kind}"


def _routes(page: Reference, spec: Schema) -> None:
    told: set[tuple[str, str]] = set()
    for group, routes in GROUPS.items():
        page.add("", f"## {group}")
        for method, path in (route.split() for route in routes):
            told.add((method.lower(), path))
            page.add("", f"### `{method} {path}`", "")
            if method == "WS":
                _websocket(page, path)
                continue
            operation = spec["paths"][path][method.lower()]
            page.add(_line(operation["description"]), "", f"Answers {ANSWERS[f'{method} {path}']}")
            if parameters := list(_parameters(operation)):
                page.add("", *parameters)
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                if kind == "multipart/form-data":
                    page.add("", "The body is `multipart/form-data`:")
                page.body(content["schema"])
    there = {(method, path) for path, methods in spec["paths"].items() for method in methods}
    told = {route for route in told if route[0] != "ws"}
    assert told == there, f"scripts/http_reference_answers.py: {told ^ there}"


def _websocket(page: Reference, path: str) -> None:
    page.add(ANSWERS[f"WS {path}"])
    messages = _MESSAGES[path]
    common = ("type", "event_id") if path == "/v1/realtime" else ("type",)
    page.add("", "**A client sends**")
    for name, model in messages.items():
        schema = model.model_json_schema(ref_template="{model}")
        about = (model.__doc__ or "").split("\n")[0] if "__doc__" in vars(model) else ""
        page.add("", f"`{name}`{f': {_line(about)}' if about else ''}")
        page.fields(schema, leave_out=common)
    page.add("", "**The server sends**", "", "| event | tells |", "|---|---|")
    page.add(*(f"| `{name}` | {about} |" for name, about in SERVER_EVENTS[path].items()))
    if path == "/v1/realtime":
        page.add("", "### The session", "", "What `session.update` may hold, and `session.created` shows.")
        page.fields(SessionConfig.model_json_schema(ref_template="{model}"))


def text() -> str:
    """The page."""
    page = Reference()
    spec = create_app(None).openapi()  # type: ignore[arg-type]
    page.know(spec["components"]["schemas"])
    _routes(page, spec)
    page.objects()
    return "\n".join(page.lines) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(text(), encoding="utf-8")
    print(f"{OUTPUT} written", file=sys.stderr)
