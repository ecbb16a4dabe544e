"""The base of every config model, which refuses unknown fields with the nearest valid name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from sglang_omni.config.nearest import did_you_mean


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "{value} is not a number", {"value": str(value).lower()})
    return value


#: Numbers in a config. Python and pydantic would accept ``true`` as one.
Integer = Annotated[int, BeforeValidator(_refuse_bool)]
Number = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
#: How many of something there are, each of which takes memory as soon as a run is planned.
Count = Annotated[Integer, Field(ge=1, le=1024)]


class StrictModel(BaseModel):
    """A config model: no extra fields, every field assignable after construction."""

    # pydantic reserves names that begin with "model_"; "model_path" is ours. And it would write inf and nan,
    # which arguments of factories may be, as null.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), ser_json_inf_nan="constants")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any) -> Any:
        # pydantic's own error does not suggest a field.
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "extra_forbidden",
                        "{owner} has no field {field} (extra inputs are not permitted){hint}",
                        {
                            "owner": cls.__name__,
                            "field": repr(key),
                            "hint": did_you_mean(str(key), cls.model_fields),
                        },
                    )
        return data


def dotted(loc: tuple[int | str, ...]) -> str:
    """A pydantic error location as text: ``stages[0].next``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def error_text(error: ErrorDetails) -> str:
    """A pydantic error's message, without the prefix pydantic puts before a validator's own text."""
    cause = error.get("ctx", {}).get("error")
    return str(cause) if isinstance(cause, Exception) else error["msg"]
