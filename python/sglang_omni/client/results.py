"""Reading of what a pipeline's stages send back: chunks, and the result of one stage or of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.client.types import (
    GenerateChunk,
    TokenLogprob,
    ToolCall,
    TranscriptionSegment,
    UsageInfo,
)

_RESULT_FIELDS = {"text", "modality", "audio_data", "audio", "token_ids", "finish_reason"}


def result_chunk(request_id: str, result: Any, finish_reason: str = "stop") -> GenerateChunk:
    """The last chunk, from one terminal stage's result or from ``{stage: result}`` of several.

    Args:
        finish_reason: Of a result that has none.
    """
    if is_merged(result):
        parts = [read_chunk(request_id, part) for part in result.values() if part is not None]
        spoken = next((part for part in parts if part.audio_data is not None), None)
        chunk = next((part for part in parts if part.audio_data is None), parts[0])
        if spoken is not None:
            chunk.audio_data, chunk.sample_rate = spoken.audio_data, spoken.sample_rate
            chunk.audio_codes = spoken.audio_codes
            chunk.usage = chunk.usage or spoken.usage
    else:
        chunk = read_chunk(request_id, result)
    chunk.finish_reason = chunk.finish_reason or finish_reason
    chunk.result = result
    return chunk


def read_chunk(request_id: str, data: Any) -> GenerateChunk:
    """A stage's chunk or result: of a dict the fields of ``sglang_omni.proto.tasks``, of another value its
    text."""
    if isinstance(data, GenerateChunk):
        data.request_id = request_id
        return data
    chunk = GenerateChunk(request_id)
    if isinstance(data, Mapping):
        _read_fields(chunk, data)
    elif isinstance(data, int) and not isinstance(data, bool):
        chunk.token_ids = [data]
    elif data is not None:
        chunk.text = str(data)
    return chunk


def is_merged(result: Any) -> bool:
    """True for ``{stage: result}`` of several terminal stages."""
    return (
        isinstance(result, dict)
        and len(result) > 1
        and any(isinstance(part, dict) for part in result.values())
        and all(part is None or isinstance(part, dict) for part in result.values())
        and not _RESULT_FIELDS.intersection(result)
    )


def _read_fields(chunk: GenerateChunk, data: Mapping[str, Any]) -> None:
    text = data.get("text")
    chunk.text = text if isinstance(text, str) else ""
    chunk.modality = data.get("modality") or chunk.modality
    audio = data.get("audio_data")
    chunk.audio_data = data.get("audio") if audio is None else audio
    if chunk.audio_data is not None:
        chunk.modality = "audio"
    chunk.sample_rate = data.get("sample_rate")
    chunk.finish_reason = data.get("finish_reason")
    chunk.usage = UsageInfo.from_dict(data.get("usage"))
    chunk.stage_name = data.get("stage_name")
    chunk.input_transcript = data.get("input_transcript")
    chunk.language = data.get("language")
    chunk.duration = data.get("duration")
    chunk.segments = [TranscriptionSegment.from_dict(segment) for segment in data.get("segments") or ()]
    codes = data.get("codes")
    if codes is not None:
        chunk.audio_codes = codes.tolist() if hasattr(codes, "tolist") else [list(frame) for frame in codes]
    token_ids = data.get("token_ids")
    if token_ids is not None:
        chunk.token_ids = token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)
    chunk.reasoning = data.get("reasoning") or ""
    chunk.spoken_text = data.get("spoken_text") or ""
    chunk.tool_calls = [ToolCall(**call) for call in data.get("tool_calls") or ()]
    chunk.logprobs = [TokenLogprob.from_wire(token) for token in data.get("logprobs") or ()]
    chunk.prompt_logprobs = [TokenLogprob.from_wire(token) for token in data.get("prompt_logprobs") or ()]
