"""A conversation as the thinker takes it: audio as its transcripts, messages as a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.preprocessing.deadline import Check
from sglang_omni.preprocessing.request import stage_params
from sglang_omni.proto import OmniRequest


def with_transcripts(
    messages: Sequence[Mapping[str, Any]], transcripts: Sequence[str]
) -> tuple[list[dict[str, Any]], str | None]:
    """The messages as text, and the transcript of the user's last message, None if that has no audio.

    Args:
        messages: Their contents are lists of texts and of indices into ``transcripts``.
    """
    plain = []
    transcript: str | None = None
    for message in messages:
        # A clip without speech must not become an empty turn, which models answer at random.
        texts = [
            part if isinstance(part, str) else transcripts[part] or "(no speech was heard)"
            for part in message["content"]
        ]
        plain.append({**message, "content": "\n".join(texts)})
        if message["role"] == "user":
            indices = [part for part in message["content"] if isinstance(part, int)]
            transcript = " ".join(filter(None, (transcripts[i] for i in indices))) if indices else None
    return plain, transcript


def plain_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a conversation without audio, as text."""
    return with_transcripts(messages, ())[0]


def for_thinker(
    messages: Sequence[Mapping[str, Any]],
    request: OmniRequest,
    chats: ChatPrompts | None,
    check: Check | None = None,
) -> dict[str, Any]:
    """What the thinker is given of a conversation in text: ``{"prompt_token_ids": [int]}``, with a
    ``reading`` (``Reading``) if the answer is more than content.

    Args:
        chats: Makes the prompt; None for a thinker that takes ``{"messages": [...]}`` and makes its own.
        check: Called between the pieces of a long text; an exception that it raises ends the work.

    Raises:
        RequestError: The conversation does not fit the model.
    """
    if chats is None:
        return {"messages": list(messages)}
    token_ids, reading = chats.encode(messages, request, **({} if check is None else {"check": check}))
    chats.prompts.check_answer(len(token_ids), stage_params(request, "thinker"))
    data: dict[str, Any] = {"prompt_token_ids": token_ids}
    return data if reading is None else {**data, "reading": reading}
