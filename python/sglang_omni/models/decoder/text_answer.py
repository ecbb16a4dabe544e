"""The text of an answer, from an engine to its readers and the caller; the same for every model family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Tokenizer

from sglang_omni.answers.content_tokens import ContentTokens
from sglang_omni.answers.delta import Delta
from sglang_omni.answers.reader import AnswerReader, Reading, is_foreign, reader_of, visible_tokens
from sglang_omni.preprocessing.request import answers_in_speech, answers_in_text, wants_stream
from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import TextResult, TokenUsage
from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer
from sglang_omni.scheduling.messages import OutgoingMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_omni.engines import EngineRequest


# Parts of an answer that not every request has.
_OptionalPart = Literal["reasoning", "tool_calls", "logprobs", "prompt_logprobs"]
_OPTIONAL: tuple[_OptionalPart, ...] = ("reasoning", "tool_calls", "logprobs", "prompt_logprobs")


class ReadText(IncrementalDetokenizer):
    """The text of an answer that is more than content, and what a reader finds in it.

    Attributes:
        content_tokens: Those that are the answer's content, of an answer that is spoken.
        reasoning_tokens: Tokens of the reasoning so far, its marks included.
    """

    def __init__(
        self, tokenizer: Tokenizer, reader: AnswerReader, *, is_spoken: bool = False, **options: Any
    ) -> None:
        """
        Args:
            options: Of ``IncrementalDetokenizer``.
        """
        super().__init__(tokenizer, **options)
        self.reader = reader
        self.content_tokens = ContentTokens() if is_spoken else None
        self.reasoning_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> bool:
        if self.content_tokens is None:
            return super().feed(token_ids)
        for token in token_ids:
            super().feed([token])
            self.content_tokens.add_token(self.num_decoded)
        return self.stopped

    def news(self, request: EngineRequest) -> dict[str, Any]:
        """What is new: ``{"text"}``, with ``reasoning`` and ``tool_calls`` if there are any; or nothing."""
        was_thinking = self.reader.is_thinking
        news = self._made_of(self.take())
        if request.finish_reason is not None:
            last = self.reader.finish()
            news += last
            if self.content_tokens is not None:
                self.content_tokens.finish(last.content)
        if was_thinking or self.reader.is_thinking:
            self.reasoning_tokens = len(request.output_token_ids)
        if not news:
            return {}
        fields: dict[str, Any] = {"text": news.content}
        if news.reasoning:
            fields["reasoning"] = news.reasoning
        if news.calls:
            fields["tool_calls"] = news.calls
        return fields

    def _made_of(self, text: str) -> Delta:
        """What a reader makes of the next text: of a spoken answer it gets each token's by itself."""
        if self.content_tokens is None:
            return self.reader.feed(text)
        news = Delta()
        for piece in self.content_tokens.pieces(text):
            new = self.reader.feed(piece)
            self.content_tokens.read(piece, new.content, self.reader.held)
            news += new
        return news


class AnswerTexts:
    """Makes the detokenizers of a stage's answers.

    Args:
        tokenizer: The checkpoint's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        # The special tokens that users do not see, by those that a reader must.
        self._hidden: dict[tuple[str, ...], frozenset[int]] = {}

    def of(self, payload: StagePayload, stop: Sequence[str]) -> IncrementalDetokenizer:
        """The detokenizer of one answer, with a reader if the payload's ``reading`` asks for it."""
        reading: Reading | None = payload.data.get("reading")
        if reading is None:
            return IncrementalDetokenizer(self.tokenizer, stop=stop)
        reader = reader_of(reading, payload.request.params)
        options: dict[str, Any] = {"stop": stop, "is_spoken": answers_in_speech(payload.request)}
        if is_foreign(reading):
            return ReadText(self.tokenizer, reader, skip_special_tokens=False, **options)
        return ReadText(self.tokenizer, reader, hidden=self._hidden_but(visible_tokens(reading)), **options)

    def _hidden_but(self, visible: Sequence[str]) -> frozenset[int]:
        key = tuple(visible)
        if key not in self._hidden:
            added = self.tokenizer.get_added_tokens_decoder()
            self._hidden[key] = frozenset(
                token_id for token_id, token in added.items() if token.special and token.content not in key
            )
        return self._hidden[key]


def answer_params(payload: StagePayload, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an answer: ``params``, and what its ``reading`` puts in their place."""
    reading: Reading | None = payload.data.get("reading")
    return {**params, **reading["sampling"]} if reading is not None else dict(params)


def text_of(request: EngineRequest) -> IncrementalDetokenizer:
    """The detokenizer of a request that was built with one."""
    assert isinstance(request.detokenizer, IncrementalDetokenizer)
    return request.detokenizer


def content_tokens(request: EngineRequest) -> ContentTokens | None:
    """Those of a spoken answer that may be more than content; None if all of it is content."""
    text = text_of(request)
    return text.content_tokens if isinstance(text, ReadText) else None


def new_text(request: EngineRequest) -> dict[str, Any]:
    """What has become safe to show since the last call: ``{"text", "token_ids"}``, with ``reasoning`` and
    ``tool_calls`` if there are any. Empty if there is nothing new.

    Text may lag behind its tokens; the result has the tokens that no chunk had.
    """
    detokenizer = text_of(request)
    if isinstance(detokenizer, ReadText):
        news = detokenizer.news(request)
    else:
        text = detokenizer.take()
        news = {"text": text} if text else {}
    if news:
        before, detokenizer.num_reported = detokenizer.num_reported, len(request.output_token_ids)
        news["token_ids"] = request.output_token_ids[before:]
    return news


def text_chunks(
    payload: StagePayload, news: Mapping[str, Any], *, speaker: str | None = None
) -> list[OutgoingMessage]:
    """The result of ``new_text`` as one chunk a reader.

    Args:
        speaker: The stage that reads the text of a spoken answer: the content alone.
    """
    if not news:
        return []
    chunk = {"modality": "text", **news}
    readers = []
    if wants_stream(payload.request) and answers_in_text(payload.request):
        readers.append("coordinator")
    if speaker is not None and news["text"] and answers_in_speech(payload.request):
        readers.append(speaker)
    return [OutgoingMessage(payload.request_id, "stream", chunk, reader) for reader in readers]


def written(request: EngineRequest) -> dict[str, Any]:
    """A finished request's ``{"text", "token_ids", "finish_reason", "prompt_tokens", "cached_tokens"}``, with
    ``reasoning``, ``reasoning_tokens`` and ``tool_calls`` if its answer was searched for them."""
    text = text_of(request)
    fields: dict[str, Any] = {
        "text": text.text,
        "token_ids": request.output_token_ids,
        "finish_reason": request.finish_reason,
        "prompt_tokens": len(request.prompt_token_ids),
        "cached_tokens": request.cached_tokens,
    }
    if isinstance(text, ReadText):
        calls = text.reader.calls.whole
        fields |= {
            "text": text.reader.content,
            "reasoning": text.reader.reasoning,
            "reasoning_tokens": text.reasoning_tokens,
            "tool_calls": calls,
        }
        if calls and request.finish_reason == "stop":
            fields["finish_reason"] = "tool_calls"
    return fields


def text_result(data: Mapping[str, Any]) -> TextResult:
    """The caller's result from ``written``: text, tokens, and usage in OpenAI's form."""
    prompt_tokens, completion_tokens = data["prompt_tokens"], len(data["token_ids"])
    usage: TokenUsage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": data["cached_tokens"]},
    }
    if "reasoning_tokens" in data:
        usage["completion_tokens_details"] = {"reasoning_tokens": data["reasoning_tokens"]}
    result: TextResult = {
        "modality": "text",
        "text": data["text"],
        "finish_reason": data["finish_reason"],
        "token_ids": data["token_ids"],
        "usage": usage,
    }
    for name in _OPTIONAL:
        if name in data:
            result[name] = data[name]
    return result
