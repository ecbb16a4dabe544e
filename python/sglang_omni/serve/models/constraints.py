"""What an answer's text must match: OpenAI's, vLLM's and SGLang's fields for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sglang_omni.serve.models.fields import TAG, ApiModel, Name, at_most

Schema = dict[str, Any]


class TextFormat(ApiModel):
    type: Literal["text"]


class JsonObjectFormat(ApiModel):
    type: Literal["json_object"]


class NamedSchema(ApiModel):
    """A JSON schema; its name, description and ``strict`` have no effect, it is always held to."""

    name: Name | None = None
    """Accepted, no effect."""
    description: str | None = None
    """Accepted, no effect."""
    schema_: Schema = Field(alias="schema")
    """The JSON schema; it is always held to."""
    strict: bool | None = None
    """Accepted, no effect."""


class JsonSchemaFormat(ApiModel):
    type: Literal["json_schema"]
    json_schema: NamedSchema
    """The schema, with its name."""


class StructuralTagFormat(ApiModel):
    """xgrammar's structural tag, in its newer form (``format``) or its older one."""

    type: Literal["structural_tag"]
    format: dict[str, Any] | None = None
    """The newer form."""
    structures: list[dict[str, Any]] | None = None
    """The older form: what stands between which texts."""
    triggers: list[str] | None = None
    """The older form: texts that begin a structure."""


_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def _format_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return TAG + kind if kind in _FORMATS else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("§text")]
    | Annotated[JsonObjectFormat, Tag("§json_object")]
    | Annotated[JsonSchemaFormat, Tag("§json_schema")]
    | Annotated[StructuralTagFormat, Tag("§structural_tag")],
    Discriminator(
        _format_tag,
        custom_error_type="response_format_type",
        custom_error_message=f"must be an object whose type is one of: {', '.join(_FORMATS)}",
    ),
]


def _object_tag(value: Any) -> str | None:
    if isinstance(value, dict):
        return "§object"
    return "§json" if isinstance(value, str) else None


# SGLang takes JSON as text, vLLM either.
JsonOrText = Annotated[
    Annotated[dict[str, Any], Tag("§object")] | Annotated[str, Tag("§json")],
    Discriminator(
        _object_tag,
        custom_error_type="json_or_text",
        custom_error_message="must be an object, or JSON text",
    ),
]


class StructuredOutputs(ApiModel):
    """vLLM's ``structured_outputs``. ``grammar`` is one in GBNF."""

    json_: JsonOrText | None = Field(None, alias="json")
    """A JSON schema."""
    json_object: bool | None = None
    """True if the text must be any JSON object."""
    regex: str | None = None
    """A regular expression that the whole text must match."""
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], at_most(1024, least=1)] | None = None
    """The text must be one of these."""
    grammar: str | None = None
    """A grammar in GBNF."""
    structural_tag: JsonOrText | None = None
    """xgrammar's structural tag."""


class GrammarFields(ApiModel):
    """SGLang's names of what the text must match; at most one may be given."""

    json_schema: JsonOrText | None = None
    """A JSON schema that the text must match."""
    regex: str | None = None
    """A regular expression that the whole text must match."""
    ebnf: str | None = None
    """A grammar in EBNF."""
    structural_tag: JsonOrText | None = None
    """xgrammar's structural tag."""


class ConstraintFields(GrammarFields):
    """All the names of what the text must match; at most one may be given."""

    response_format: ResponseFormat | None = None
    """OpenAI's name: text, any JSON object, or one of a schema."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's name."""
