"""What the API's request models share: strict types, ranges, and fields that must keep their default."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

# Tags of unions begin with this character, so that errors can tell them from field names.
TAG = "§"


class ApiModel(BaseModel):
    """Unknown fields and values of the wrong type are errors; numbers are finite."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), populate_by_name=True
    )


def _must_be(*harmless: Any) -> Any:
    allowed = " or ".join(repr(value) for value in harmless if value is not None) or "left out"

    def check(value: Any) -> Any:
        if value is None or any(value == other and type(value) is type(other) for other in harmless):
            return value
        raise ValueError(f"not supported here; the only value is {allowed}")

    return Annotated[Any, AfterValidator(check), WithJsonSchema({"description": f"Only {allowed}."})]


# OpenAI's fields that would change the answer in ways no pipeline here can honour: anything but their
# harmless default is an error, never ignored.
OnlyNone = _must_be(None)
OnlyOne = _must_be(1)
OnlyZero = _must_be(0)
OnlyFalse = _must_be(False)
OnlyEmptyList = _must_be([])
OnlyEmptyDict = _must_be({})
OnlyEmptyText = _must_be("")
OnlyText = _must_be({"type": "text"})
OnlyNoTools = _must_be("none", "auto")

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=2)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenId = Annotated[int, Field(ge=0, lt=2**63)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
Stop = Annotated[
    Annotated[StopText, Tag("§one")] | Annotated[list[StopText], Tag("§several"), Field(max_length=16)],
    Discriminator(lambda value: "§several" if isinstance(value, list) else "§one"),
]
RequestId = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$")]
Timeout = Annotated[float, Field(gt=0, le=86_400)]
StageParams = dict[str, dict[str, Any]]


def _top_k(value: int) -> int:
    if value == 0 or value < -1:
        raise ValueError("must be at least 1, or -1 for no limit")
    return value


TopK = Annotated[int, Field(lt=2**31), AfterValidator(_top_k)]


class SamplingFields(ApiModel):
    """How tokens are drawn, common to every text route. None leaves it to the model."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256)] | None = None
    ignore_eos: bool = False


class ExtensionFields(ApiModel):
    """What this server adds to OpenAI's requests.

    Attributes:
        stage_params: One stage's own parameters, by stage name.
        timeout: Seconds until the request is aborted and answered with a 504.
        request_id: The id the request is known by, in ``/abort_request`` and in logs.
        timings: Whether the answer tells the seconds of work and of wait in each stage.
    """

    stage_params: StageParams | None = None
    timeout: Timeout | None = None
    request_id: RequestId | None = None
    timings: bool = False
