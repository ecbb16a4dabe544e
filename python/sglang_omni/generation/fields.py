"""Fields of answers beside text and sound: counts, calls of tools, log-probabilities, stretches of speech."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class UsageInfo:
    """Token counts of a request.

    Attributes:
        cached_tokens: The part of the prompt found in a prefix cache.
        reasoning_tokens: The part of the answer that is reasoning; None if it was not searched for any.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any] | None) -> UsageInfo | None:
        if not fields:
            return None
        prompt, completion = fields.get("prompt_tokens"), fields.get("completion_tokens")
        total = fields.get("total_tokens")
        if total is None and prompt is not None and completion is not None:
            total = prompt + completion
        details = fields.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens", fields.get("cached_tokens"))
        reasoning = (fields.get("completion_tokens_details") or {}).get("reasoning_tokens")
        return cls(prompt, completion, total, cached, reasoning)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's ``usage``; unknown counts are 0."""
        fields: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens or 0,
            "completion_tokens": self.completion_tokens or 0,
            "total_tokens": self.total_tokens or 0,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens or 0},
        }
        if self.reasoning_tokens is not None:
            fields["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return fields


@dataclass
class ToolCall:
    """A call of a tool that an answer asks for, or what a chunk adds to one.

    Attributes:
        index: Which of the answer's calls.
        id: None in a chunk that continues a call; so is ``name``.
        arguments: JSON text; of a chunk, the next piece of it.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


def join_tool_calls(whole: list[ToolCall], new: Iterable[ToolCall]) -> None:
    """Adds to ``whole`` what a chunk has of tool calls."""
    for call in new:
        told = next((other for other in whole if other.index == call.index), None)
        if told is None:
            whole.append(replace(call))
        else:
            told.arguments += call.arguments


@dataclass
class TokenLogprob:
    """A token and its natural log-probability, before temperature and penalties, as transformers' scores.

    Attributes:
        token: Its text; a broken character is shown as U+FFFD, and ``token_bytes`` has the bytes.
        logprob: None for a prompt's first token, which nothing predicts.
        top: The likeliest tokens at its place, the likeliest first; without ``top`` of their own.
    """

    token: str
    token_id: int
    logprob: float | None
    token_bytes: bytes = b""
    top: list[TokenLogprob] = field(default_factory=list)

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> TokenLogprob:
        """From ``{"token", "token_id", "logprob", "bytes", "top"}``, as stages report it."""
        return cls(
            fields["token"],
            fields["token_id"],
            fields["logprob"],
            bytes(fields.get("bytes") or b""),
            [cls.from_wire(other) for other in fields.get("top") or ()],
        )


@dataclass
class TranscriptionWord:
    """A word of a transcript or of speech; ``start`` and ``end`` in seconds of all of it."""

    word: str
    start: float
    end: float

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TranscriptionWord:
        """From a stage's or a server's word."""
        return cls(fields["word"], float(fields["start"]), float(fields["end"]))


@dataclass
class TranscriptionSegment:
    """A stretch of a transcript; ``start`` and ``end`` in seconds.

    Attributes:
        words: If the request wants them.
        seek: As in OpenAI's segments, and so are the fields after it; None if the model does not tell them.
    """

    start: float
    end: float
    text: str
    words: list[TranscriptionWord] = field(default_factory=list)
    seek: int | None = None
    tokens: list[int] | None = None
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TranscriptionSegment:
        """From a stage's or a server's segment; fields that it has beyond these are left out."""
        given = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        words = [TranscriptionWord.from_dict(word) for word in fields.get("words") or ()]
        return cls(**given | {"words": words})
