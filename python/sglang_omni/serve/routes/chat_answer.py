"""Chat answers in OpenAI's form: messages, deltas, calls and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.audio import DEFAULT_SAMPLE_RATE
from sglang_omni.generation.fields import TokenLogprob, ToolCall, TranscriptionWord
from sglang_omni.generation.results import CompletionResult, PartEncoder
from sglang_omni.serve.front.streaming import to_json
from sglang_omni.serve.word_times import WordTimes

_TEXT = ("text",)


@dataclass(frozen=True)
class Answers:
    """How the answers to one request are written.

    Attributes:
        created: Unix time of the request.
        return_token_ids: True if they have token ids and codes of speech.
        legacy: True if a call has OpenAI's older form.
        logprobs: True if they have log-probabilities.
        times: How the words of each answer are timed; empty if that is not asked for.
    """

    created: int
    modalities: tuple[str, ...]
    return_token_ids: bool
    legacy: bool
    logprobs: bool
    times: Sequence[WordTimes] = ()

    def choice(self, index: int, result: CompletionResult) -> dict[str, Any]:
        """A whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        is_read = "text" in self.modalities or result.audio is None
        # An answer that is nothing but calls has no content.
        if is_read and (result.text or not result.tool_calls):
            message["content"] = result.text
        if result.reasoning:
            message |= _reasoning(result.reasoning)
        if result.tool_calls:
            message |= self._calls([_whole_call(call) for call in result.tool_calls])
        if "audio" in self.modalities and result.audio is not None:
            message["audio"] = {
                "id": result.audio.id,
                "data": result.audio.data,
                "transcript": result.audio.transcript or "",
                "expires_at": self.created,
            }
            if self.times:
                message["audio"] |= self._times(index, result.audio.words, last=True)
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(result.logprobs),
            "finish_reason": self.finish_reason(result.finish_reason),
        }
        if self.return_token_ids:
            choice["token_ids"] = result.token_ids
            if "audio" in message:
                message["audio"]["codes"] = result.audio_codes
        return choice

    async def sound(self, encoder: PartEncoder, part: GenerateChunk) -> dict[str, Any]:
        """The fields of a part's sound; none if it has none that is ready, or none is wanted."""
        if "audio" not in self.modalities or (data := await encoder.encode(part)) is None:
            return {}
        return {"data": data, "sample_rate": encoder.sample_rate or DEFAULT_SAMPLE_RATE}

    def part(
        self, index: int, part: GenerateChunk, sound: dict[str, Any], *, is_first: bool
    ) -> dict[str, Any] | None:
        """What a part adds to an answer; None if nothing."""
        if self.times:
            timed = self._times(index, part.words, last=part.finish_reason is not None)
            sound |= timed if timed["words"] else {}
        delta = self._delta(part, sound)
        token_ids = part.token_ids if self.return_token_ids else []
        if not (delta or token_ids or part.logprobs or part.input_transcript):
            return None
        role = {"role": "assistant"} if is_first else {}
        choice = part_of(index, role | delta, self._logprobs(part.logprobs) if part.logprobs else None)
        return choice | ({"token_ids": part.token_ids} if self.return_token_ids else {})

    def plain(self, part: GenerateChunk) -> tuple[str, str] | None:
        """The delta and the log-probabilities, as JSON, of a part that adds text alone; None if not."""
        if self.modalities != _TEXT or self.return_token_ids or not (part.text and part.is_plain):
            return None
        logprobs = to_json(self._logprobs(part.logprobs)) if part.logprobs else "null"
        return f'{{"content":{to_json(part.text)}}}', logprobs

    def finish_reason(self, reason: str) -> str:
        return "function_call" if self.legacy and reason == "tool_calls" else reason

    def _times(self, index: int, words: list[TranscriptionWord], *, last: bool) -> dict[str, Any]:
        times = self.times[index]
        return {"granularity": times.granularity, "words": times.add(words, last=last)}

    def _delta(self, part: GenerateChunk, sound: dict[str, Any]) -> dict[str, Any]:
        delta: dict[str, Any] = _reasoning(part.reasoning) if part.reasoning else {}
        audio: dict[str, Any] = {}
        if part.text:
            if "text" in self.modalities:
                delta["content"] = part.text
            if "audio" in self.modalities:
                audio["transcript"] = part.text
        if part.tool_calls:
            delta |= self._calls([_new_call(call) for call in part.tool_calls])
        audio |= sound
        if self.return_token_ids and part.audio_codes and "audio" in self.modalities:
            audio["codes"] = part.audio_codes
        if audio:
            delta["audio"] = {"id": f"audio-{part.request_id}", "expires_at": self.created, **audio}
        return delta

    def _calls(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"function_call": calls[0]["function"]} if self.legacy else {"tool_calls": calls}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        content = [
            {**_logprob(token), "top_logprobs": [_logprob(other) for other in token.top]} for token in tokens
        ]
        return {"content": content, "refusal": None}


def part_of(
    index: int,
    delta: dict[str, Any] | str,
    logprobs: dict[str, Any] | str | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    """A choice of a streamed event."""
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _reasoning(text: str) -> dict[str, Any]:
    # The first is DeepSeek's and SGLang's name, the second vLLM's and OpenRouter's.
    return {"reasoning_content": text, "reasoning": text}


def _whole_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _new_call(call: ToolCall) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **_whole_call(call)}


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    # The id is an addition to OpenAI's form.
    return {
        "token": token.token,
        "logprob": token.logprob,
        "bytes": list(token.token_bytes),
        "token_id": token.token_id,
    }
