"""Streamed text: chat, chat that is spoken, and completions."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from sglang_omni.bench.outcome import CallFailed, Outcome
from sglang_omni.bench.prompts import BenchPrompt, BenchPrompts
from sglang_omni.bench.traffic import Asking

# Of pcm16, unless the server tells another.
_RATE = 24_000


class ChatTraffic(NamedTuple):
    """``/v1/chat/completions``.

    Attributes:
        spoken: True if the answers are to have sound.
    """

    asking: Asking
    prompts: BenchPrompts
    spoken: bool

    async def ask(self, index: int, outcomes: list[Outcome]) -> None:
        outcome, written, finished = outcomes[-1], False, False
        async for now, event in self.asking.target.events("/v1/chat/completions", self._body(index)):
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                finished |= bool(choice.get("finish_reason"))
                if delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
                    outcome.texts.append(now)
                    written = True
                sound = delta.get("audio") or {}
                # The transcript is the text once more, where there is text.
                if sound.get("transcript") and not written:
                    outcome.texts.append(now)
                if data := sound.get("data"):
                    seconds = len(base64.b64decode(data)) / 2 / (sound.get("sample_rate") or _RATE)
                    outcome.hears(now, seconds)
            _count(outcome, event)
        _check(finished)
        if self.spoken and outcome.playback is None:
            raise CallFailed("no sound", "the answer has text alone; does the model speak?")

    def _body(self, index: int) -> dict[str, Any]:
        prompt = self.prompts(index)
        body = {"model": self.asking.model, "messages": prompt.messages, **_streamed(prompt)}
        if self.spoken:
            voice = {"voice": self.asking.voice} if self.asking.voice else {}
            body |= {"modalities": ["text", "audio"], "audio": {"format": "pcm16", **voice}}
        return body | self.asking.more


class CompletionTraffic(NamedTuple):
    """``/v1/completions``."""

    asking: Asking
    prompts: BenchPrompts

    async def ask(self, index: int, outcomes: list[Outcome]) -> None:
        outcome = outcomes[-1]
        prompt = self.prompts(index)
        body = {"model": self.asking.model, "prompt": prompt.text, **_streamed(prompt)}
        finished = False
        async for now, event in self.asking.target.events("/v1/completions", body | self.asking.more):
            for choice in event.get("choices") or ():
                finished |= bool(choice.get("finish_reason"))
                if choice.get("text"):
                    outcome.texts.append(now)
            _count(outcome, event)
        _check(finished)


def _streamed(prompt: BenchPrompt) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if prompt.output_len is not None:
        fields["max_tokens"] = prompt.output_len
    return fields


def _check(finished: bool) -> None:
    """An answer may be empty, but it has an end."""
    if not finished:
        raise CallFailed("cut stream", "it ended without a finish_reason")


def _count(outcome: Outcome, event: dict[str, Any]) -> None:
    """Usage comes in the last event; servers without it are counted by their pieces."""
    if usage := event.get("usage"):
        outcome.take_usage(usage)
    elif not outcome.output_tokens or outcome.counted:
        outcome.count_pieces()
