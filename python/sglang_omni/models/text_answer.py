"""An answer in text, on its way out of an engine to the caller; the same for every model family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from sglang_omni.engines import EngineRequest


def text_of(request: EngineRequest) -> IncrementalDetokenizer:
    """The text that a request has written, of one that was given a detokenizer."""
    assert isinstance(request.detokenizer, IncrementalDetokenizer)
    return request.detokenizer


def new_text(request: EngineRequest) -> dict[str, Any] | None:
    """A chunk of what has become safe to show since the last one: its text, and the tokens since that one.

    A text may lag behind its tokens; the result has those that no chunk had.
    """
    detokenizer = text_of(request)
    delta = detokenizer.take()
    if not delta:
        return None
    told, detokenizer.num_reported = detokenizer.num_reported, len(request.output_token_ids)
    return {"modality": "text", "text": delta, "token_ids": request.output_token_ids[told:]}


def written(request: EngineRequest) -> dict[str, Any]:
    """A finished request's ``{"text", "token_ids", "finish_reason", "prompt_tokens", "cached_tokens"}``."""
    return {
        "text": text_of(request).text,
        "token_ids": request.output_token_ids,
        "finish_reason": request.finish_reason,
        "prompt_tokens": len(request.prompt_token_ids),
        "cached_tokens": request.cached_tokens,
    }


def text_result(data: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's result out of what ``written`` gives: text, tokens, and usage as OpenAI counts it."""
    prompt_tokens, completion_tokens = data["prompt_tokens"], len(data["token_ids"])
    return {
        "modality": "text",
        "text": data["text"],
        "finish_reason": data["finish_reason"],
        "token_ids": data["token_ids"],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": data["cached_tokens"]},
        },
    }
