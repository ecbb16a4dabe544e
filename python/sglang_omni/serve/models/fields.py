"""Field types of the API's request models: strict types, ranges, and fields that must keep their default."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from sglang_omni.preprocessing.param_values import (
    MAX_NAME_LENGTH,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
)
from sglang_omni.proto.limits import MAX_STOP_LENGTH, MAX_STOP_TOKENS, MAX_STOPS
from sglang_omni.proto.tasks import Granularity

# The tags of unions begin with this character, which tells them from field names in errors.
TAG = "§"
# The type of error for a value that is understood and cannot be honoured.
UNSUPPORTED = "unsupported_value"

# Fields that other servers take and this one does not. They are not misspellings of other fields.
UNSUPPORTED_FIELDS = frozenset(
    {
        *("allowed_token_ids", "bad_words", "best_of", "cache_salt", "chat_template", "chat_template_kwargs"),
        *("chunking_strategy", "custom_logit_processor", "documents", "ebnf", "echo", "guided_choice"),
        *("guided_grammar", "guided_json", "guided_regex", "image_data", "include", "include_reasoning"),
        *("include_stop_str_in_output", "input_embeds", "json_schema", "kv_transfer_params"),
        *("length_penalty", "logits_processors", "logprob_start_len", "lora_path", "min_new_tokens"),
        *("min_tokens", "mm_processor_kwargs", "priority", "prompt_logprobs", "ref_audio", "ref_text"),
        *("regex", "return_hidden_states", "return_tokens_as_token_ids", "session_params"),
        *("skip_special_tokens", "spaces_between_special_tokens", "structural_tag", "structured_outputs"),
        *("task_type", "thinking_token_budget", "top_logprobs_num", "truncate_prompt_tokens"),
        *("use_beam_search", "vllm_xargs", "x_vector_only_mode"),
    }
)


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field's value, or null."""
    about = {name: value for name, value in field.items() if name in ("title", "description", "default")}
    kind = {name: value for name, value in field.items() if name not in about}
    kinds = kind["anyOf"] if kind.keys() == {"anyOf"} else [kind]
    takes_null = not kind or {"type": "null"} in kinds
    return field if takes_null else {**about, "anyOf": [*kinds, {"type": "null"}]}


class ReceivedModel(BaseModel):
    """What a client sends: unknown fields and values of the wrong type are errors; numbers are finite."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


class ApiModel(ReceivedModel):
    """The body of a request, or a part of it.

    An optional field that is null counts as left out: clients send all the fields they know.
    """

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, data: Any) -> Any:
        if not isinstance(data, dict) or None not in data.values():
            return data
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in data.items() if value is not None or name not in optional}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema, in which every optional field may be null."""
        described = handler(schema)
        model = handler.resolve_ref_schema(described)
        required = model.get("required", ())
        for name, field in model["properties"].items():
            if name not in required:
                model["properties"][name] = _or_null(field)
        return described


def unsupported(message: str) -> PydanticCustomError:
    """An error for a value that is understood and cannot be honoured."""
    return PydanticCustomError(UNSUPPORTED, "{message}", {"message": message})


def _must_be(*harmless: Any) -> Any:
    allowed = list(dict.fromkeys(_written(value) for value in harmless if value is not None))
    hint = f"the only value is {' or '.join(allowed)}" if allowed else "leave it out"

    def check(value: Any) -> Any:
        if value is None or any(value == other and isinstance(other, type(value)) for other in harmless):
            return value
        raise unsupported(f"not supported here; {hint}")

    only = " or ".join(f"`{each}`" for each in allowed)
    schema = {"description": f"Only {only}." if only else "Refused."}
    return Annotated[Any, AfterValidator(check), WithJsonSchema(schema)]


class _Form(str):
    """A value of a form, in which false and 0 are texts."""


def _written(value: Any) -> str:
    """A value as callers write it."""
    return value.lower() if isinstance(value, _Form) else json.dumps(value)


# For OpenAI's fields that no pipeline here can honour: a value other than their harmless default is an
# error, never ignored.
OnlyNone = _must_be(None)
OnlyZero = _must_be(0)
OnlyFalse = _must_be(False)
OnlyTrue = _must_be(True)
OnlyEmptyList = _must_be([])
OnlyEmptyText = _must_be("")
OnlyDefaultTier = _must_be("auto", "default")
OnlyFormFalse = _must_be(_Form("false"), _Form("False"))
OnlyFormZero = _must_be(_Form("0"), _Form("0.0"))

# A name, label or id, whether the server reads it or passes it on.
Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]


def _voice_name(voice: Any) -> Any:
    """The name in OpenAI's object for a voice of one's own."""
    return voice["id"] if isinstance(voice, dict) and voice.keys() == {"id"} else voice


# A voice's name or id, or OpenAI's object with it.
VoiceName = Annotated[Name, BeforeValidator(_voice_name)]


def at_most(count: int, *, least: int = 0) -> Any:
    """A list's length. Only its first wrong item is reported: reporting a million takes minutes."""
    return Field(min_length=least, max_length=count, fail_fast=True)


Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=MAX_REPETITION_PENALTY)]
Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)]
Granularities = Annotated[list[Granularity], at_most(2, least=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenId = Annotated[int, Field(ge=0, lt=2**63)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


def _stop_tag(value: Any) -> str | None:
    if isinstance(value, list):
        return "§several"
    return "§one" if isinstance(value, str) else None


StopTexts = Annotated[list[StopText], at_most(MAX_STOPS)]
Stop = Annotated[
    Annotated[StopText, Tag("§one")] | Annotated[StopTexts, Tag("§several")],
    Discriminator(
        _stop_tag,
        custom_error_type="stop_type",
        custom_error_message="must be a text or a list of texts",
    ),
]


def _visible(value: str) -> str:
    if not all("!" <= character <= "~" for character in value):
        raise ValueError("may hold visible ASCII characters only, and no spaces")
    return value


RequestId = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_visible)]
Timeout = Annotated[float, Field(gt=0, le=86_400)]
StageParams = dict[Name, dict[Name, Any]]


def _top_k(value: int) -> int:
    if value < -1:
        raise ValueError("must be at least 1, or -1 or 0 for no limit")
    return value


TopK = Annotated[int, Field(lt=2**31), AfterValidator(_top_k)]


def _by_token(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    by_token = {}
    for token, bias in value.items():
        if not isinstance(token, str) or re.fullmatch("[0-9]{1,18}", token) is None:
            raise ValueError(f"{str(token)[:64]!r} is not a token id")
        by_token[int(token)] = bias
    return by_token


# OpenAI's: added to the logits of tokens, by token id as text.
LogitBias = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=256), BeforeValidator(_by_token)
]


class SamplingFields(ApiModel):
    """How tokens are sampled, the same on every route for text. None leaves it to the model."""

    temperature: Temperature | None = None
    """0 takes the likeliest token each time; higher draws more freely."""
    top_p: TopP | None = None
    """Draw only among the likeliest tokens that have this probability together."""
    top_k: TopK | None = None
    """Draw only among this many of the likeliest tokens; -1 and 0 are no limit."""
    min_p: MinP | None = None
    """Draw only among tokens with at least this share of the likeliest one's probability."""
    repetition_penalty: RepetitionPenalty | None = None
    """Above 1, tokens of the prompt and the answer become less likely to come again."""
    presence_penalty: Penalty | None = None
    """Taken from the logits of tokens that the answer has already."""
    frequency_penalty: Penalty | None = None
    """Taken from a token's logit for each time that the answer has it."""
    seed: Seed | None = None
    """With the same seed, prompt and parameters, the same tokens are drawn."""
    stop: Stop | None = None
    """The answer ends before any of these texts."""
    stop_token_ids: Annotated[list[TokenId], at_most(MAX_STOP_TOKENS)] | None = None
    """The answer ends at any of these tokens."""
    ignore_eos: bool = False
    """True if the answer goes on after the model's end token, up to its limit."""


class ExtensionFields(ApiModel):
    """Fields that this server adds to OpenAI's requests."""

    stage_params: StageParams | None = None
    """Parameters for single stages, by stage name; they override those of the whole request."""
    timeout: Timeout | None = None
    """Seconds until the request is aborted and answered with a 504."""
    request_id: RequestId | None = None
    """The request's id, for ``/abort_request``, traces and the log; a new one if left out."""
    timings: bool = False
    """True if the answer has the seconds of work and of waiting in each stage."""
