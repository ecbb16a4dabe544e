"""The references of the HTTP API, of flags and of config fields say what the code says, and all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from generated_page import ROOT, load_script
from pydantic import BaseModel

from sglang_omni.cli.command_words import words_of_all
from sglang_omni.cli.commands import COMMANDS
from sglang_omni.config import PipelineConfig
from sglang_omni.generation.audio import FORMAT_MIME_TYPES
from sglang_omni.serve import create_app
from sglang_omni.serve.front.errors import error_body
from sglang_omni.serve.realtime.events import EVENTS

DOCS = ROOT / "docs"
REALTIME = ROOT / "python/sglang_omni/serve/realtime"
HEARD = "conversation.item.input_audio_transcription"


def _models(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            _models(annotation, seen)
        for inner in get_args(annotation):
            visit(inner)

    if model not in seen:
        seen.add(model)
        for field in model.model_fields.values():
            visit(field.annotation)
    return seen


# What a schema of any value says.
_ABOUT = {"title", "description", "default"}


@pytest.mark.parametrize(
    ("name", "page"), [("http_reference", "http-api.md"), ("flag_reference", "flags.md")]
)
def test_the_page_is_what_its_script_writes(name: str, page: str) -> None:
    assert load_script(name).text() == (DOCS / "reference" / page).read_text(), f"run scripts/{name}.py"


def _bodies(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every body, with those of the models that it refers to."""
    for name, model in schema["components"]["schemas"].items():
        yield from ((f"{name}.{field}", reported) for field, reported in model["properties"].items())
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for field, reported in content["schema"].get("properties", {}).items():
                    yield f"{path} {field}", reported


def test_every_field_of_the_api_says_what_it_does() -> None:
    fields = dict(_bodies(create_app(None).openapi()))  # type: ignore[arg-type]
    assert {"ChatCompletionRequest.temperature", "/v1/audio/transcriptions file"} <= fields.keys()
    reported = {name: [field, *field.get("anyOf", ())] for name, field in fields.items()}
    silent = [
        name
        for name, parts in reported.items()
        if not any({"description", "const"} & part.keys() for part in parts)
    ]
    assert silent == []


def test_errors_are_reported_as_they_are() -> None:
    api = create_app(None).openapi()  # type: ignore[arg-type]
    answers = [op["responses"] for each in api["paths"].values() for op in each.values()]
    assert {status for each in answers for status in each} == {"200", "201", "503", "default"}
    for each in answers:
        error = each["default"]["content"]["application/json"]["schema"]["properties"]["error"]
        assert error["properties"].keys() == error_body("", 400)["error"].keys()


def test_an_optional_field_may_be_null() -> None:
    """As it may be in the models of ``serve``: it then counts as left out."""
    models = create_app(None).openapi()["components"]["schemas"]  # type: ignore[arg-type]
    kinds = {
        f"{name}.{field}": about.get("anyOf", [{"type": "null"}] if about.keys() <= _ABOUT else [about])
        for name, model in models.items()
        for field, about in model["properties"].items()
        if field not in model.get("required", ())
    }
    assert len(kinds) > 100
    assert [field for field, kind in kinds.items() if {"type": "null"} not in kind] == []


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("/metrics", {"text/plain"}),
        ("/flush_cache", {"text/plain", "application/json"}),
        ("/ping", set()),
        ("/v1/chat/completions", {"application/json", "text/event-stream"}),
        ("/v1/responses", {"application/json", "text/event-stream"}),
        ("/v1/audio/speech", {*FORMAT_MIME_TYPES.values(), "text/event-stream", "application/json"}),
        (
            "/v1/audio/transcriptions",
            {"application/json", "text/plain", "text/vtt", "text/event-stream"},
        ),
        ("/v1/realtime/calls", {"application/sdp"}),
    ],
)
def test_media_types_of_answers_are_reported(path: str, kinds: set[str]) -> None:
    for operation in create_app(None).openapi()["paths"][path].values():  # type: ignore[arg-type]
        [answer] = [each for status, each in operation["responses"].items() if status.startswith("2")]
        assert set(answer.get("content", ())) == kinds


def test_every_route_says_what_it_is_for() -> None:
    paths = create_app(None).openapi()["paths"]  # type: ignore[arg-type]
    assert [
        path for path, each in paths.items() if not all(op.get("description") for op in each.values())
    ] == []


def test_the_events_of_realtime_are_those_that_are_sent() -> None:
    reported = set(load_script("http_reference_answers").SERVER_EVENTS["/v1/realtime"])
    source = "".join(path.read_text() for path in REALTIME.glob("*.py") if path.name != "beta.py")
    kinds = "session|input_audio_buffer|output_audio_buffer|conversation|response"
    written = set(re.findall(rf'"((?:{kinds})\.[a-z_.]+)"', source))
    # Names of settings in errors.
    written -= {name for name in written if name.startswith("session.")} - {
        "session.created",
        "session.updated",
    }
    written -= EVENTS.keys() | {HEARD, "response.audio"}
    written |= {f"{HEARD}.{end}" for end in ("delta", "completed", "failed")} | {"error"}
    assert reported == written


def test_every_command_is_on_the_command_lines_page() -> None:
    text = (DOCS / "cli.md").read_text()
    listed = {
        name
        for row in re.findall(r"^\| (.*?) \|", text, re.M)
        for name in re.findall(r"sgl-omni ([a-z-]+)", row)
    }
    assert listed == {command.name for command in COMMANDS}


def test_every_option_of_every_command_is_listed_and_no_other() -> None:
    text = (DOCS / "reference" / "flags.md").read_text()
    sections = dict(re.findall(r"^##+ `sgl-omni ([a-z_0-9 -]+)`\n(.*?)(?=^##|\Z)", text, re.M | re.S))
    for path, words in words_of_all().items():
        if path:
            rows = re.findall(r"^\| (`.*?) \|", sections[path], re.M)
            listed = {name for row in rows for name in re.findall(r"`(--[a-z0-9-]+)", row)}
            assert listed == words.options.keys() - {"--help"}, path


def test_every_field_of_every_config_model_is_described() -> None:
    text = (DOCS / "config.md").read_text()
    models = _models(PipelineConfig, set())
    assert len(models) > 10
    missing = {
        f"{model.__name__}.{name}"
        for model in models
        for name in model.model_fields
        if not re.search(rf"\b{name}\b", text)
    }
    assert missing == set()


def test_the_pictures_are_what_their_script_draws() -> None:
    pictures = load_script("concept_pictures")
    for name, picture in pictures.PICTURES.items():
        drawn = (DOCS / "images" / name).read_text()
        assert pictures.draw(picture) == drawn, "run scripts/concept_pictures.py"


def test_the_generated_pages_are_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    assert {path.name for path in Path(DOCS / "reference").glob("*.md")} == set(
        re.findall(r"reference/([a-z-]+\.md)", nav)
    )
