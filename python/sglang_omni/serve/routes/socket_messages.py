"""Messages that clients send over WebSockets: JSON objects that name their ``type``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from sglang_omni.proto import RequestError
from sglang_omni.serve.front.validation import validation_error
from sglang_omni.serve.models.fields import ApiModel

MessageT = TypeVar("MessageT", bound=ApiModel)


def read_message(text: str, models: Mapping[str, type[MessageT]], most_chars: int) -> MessageT:
    """The message of a text frame.

    Args:
        models: By the messages' types.
        most_chars: The longest text that is read.

    Raises:
        RequestError: It is none of them, or a field is wrong.
    """
    if len(text) > most_chars:
        raise RequestError(
            f"the message is over the limit of {most_chars} characters", code="request_too_large"
        )
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"the message is not valid JSON: {exc}", code="invalid_json") from exc
    kind = fields.get("type") if isinstance(fields, dict) else None
    model = models.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise RequestError(
            f"type: a message is a JSON object whose type is one of {', '.join(models)}",
            param="type",
            code="invalid_value",
        )
    try:
        return model.model_validate(fields)
    except ValidationError as exc:
        raise validation_error(exc.errors(include_url=False), model) from exc
