"""The text of an answer, from an engine to its readers and the caller; the same for every model family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang_omni.preprocessing.request import answers_in_speech, answers_in_text, wants_stream
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer
from sglang_omni.scheduling.messages import OutgoingMessage

if TYPE_CHECKING:
    from sglang_omni.engines import EngineRequest


def text_of(request: EngineRequest) -> IncrementalDetokenizer:
    """The detokenizer of a request that was built with one."""
    assert isinstance(request.detokenizer, IncrementalDetokenizer)
    return request.detokenizer


def new_text(
    payload: StagePayload, request: EngineRequest, *, speaker: str | None = None
) -> list[OutgoingMessage]:
    """The text that has become safe to show since the last call, with its tokens, as one chunk a reader.

    Text may lag behind its tokens; the result has the tokens that no chunk had.

    Args:
        speaker: The stage that reads the text of a spoken answer.
    """
    detokenizer = text_of(request)
    delta = detokenizer.take()
    if not delta:
        return []
    told, detokenizer.num_reported = detokenizer.num_reported, len(request.output_token_ids)
    chunk = {"modality": "text", "text": delta, "token_ids": request.output_token_ids[told:]}
    readers = []
    if wants_stream(payload.request) and answers_in_text(payload.request):
        readers.append("coordinator")
    if speaker is not None and answers_in_speech(payload.request):
        readers.append(speaker)
    return [OutgoingMessage(request.request_id, "stream", chunk, reader) for reader in readers]


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
    """The caller's result from ``written``: text, tokens, and usage in OpenAI's form."""
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
        **{name: data[name] for name in ("logprobs", "prompt_logprobs") if name in data},
    }
