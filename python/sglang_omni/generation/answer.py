"""What comes back of a request: parts, each with what is new, and the whole answer that they join to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from sglang_omni.generation.audio import Resampler
from sglang_omni.generation.fields import (
    TokenLogprob,
    ToolCall,
    TranscriptionSegment,
    TranscriptionWord,
    UsageInfo,
    join_tool_calls,
)
from sglang_omni.generation.samples import DEFAULT_SAMPLE_RATE, Samples, to_mono
from sglang_omni.proto import StageTime


@dataclass(kw_only=True)
class AnswerFields:
    """What parts and whole answers of every form have.

    Attributes:
        input_transcript: The transcript of the request's own audio.
        timings: Seconds of work and wait in each stage, in the order of the stages, on the last part of a
            request that asked for them.
        worker: The server that answered, if a router names it.
        audio_codes: On the last part, the codec's codes of each audio frame, if the model has any.
        result: On the last part, the pipeline's unchanged result. Sound that was streamed is not in it.
        reasoning: What a thinking model writes before its answer, which ``text`` does not have.
        tool_calls: Whole, or of a part what is new of them.
        logprobs: Of the tokens in ``token_ids``, if the request wants them.
        prompt_logprobs: Of the prompt's tokens, on the last part, if the request wants them.
    """

    token_ids: list[int] = field(default_factory=list)
    input_transcript: str | None = None
    timings: dict[str, StageTime] | None = None
    worker: str | None = None
    audio_codes: list[list[int]] = field(default_factory=list)
    result: Any = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    def shared(self) -> dict[str, Any]:
        """These fields, for an answer of another form."""
        return {each.name: getattr(self, each.name) for each in fields(AnswerFields)}


@dataclass
class GenerateChunk(AnswerFields):
    """A part of an answer, or a whole one. The last part alone has a ``finish_reason``.

    Attributes:
        audio_data: Samples, float32 of shape (samples,) in [-1, 1], or in the stage's own type.
        sample_rate: Of them, in Hz.
        spoken_text: The text that these samples speak, if the pipeline tells.
        words: Those that begin in these samples, timed from where the answer's sound begins.
        segments: Of a transcript.
    """

    request_id: str
    text: str = ""
    modality: str = "text"
    audio_data: Any = None
    sample_rate: int | None = None
    finish_reason: str | None = None
    usage: UsageInfo | None = None
    stage_name: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[TranscriptionSegment] = field(default_factory=list)
    spoken_text: str = ""
    words: list[TranscriptionWord] = field(default_factory=list)

    @property
    def samples(self) -> Samples | None:
        """The sound as float32 of shape (samples,), its channels averaged; None if there is none."""
        if self.audio_data is None:
            return None
        samples = to_mono(self.audio_data)
        return samples if len(samples) else None

    @property
    def is_plain(self) -> bool:
        """True if it has nothing but text and its tokens, and is not the last part."""
        return self.audio_data is None and not (
            self.finish_reason
            or self.reasoning
            or self.tool_calls
            or self.segments
            or self.words
            or self.input_transcript
            or self.usage
            or self.audio_codes
            or self.prompt_logprobs
            or self.language
        )

    @property
    def audio_seconds(self) -> float:
        return 0.0 if (samples := self.samples) is None else len(samples) / (self.sample_rate or 1)


class TextJoiner:
    """Joins parts with tokens alone, in order: those that came together, and too few tokens to be sent.

    Text without tokens is of a pipeline's own making, and each piece of it stays a part.

    Args:
        interval: The fewest tokens of a part; the first one is not held back.
    """

    def __init__(self, interval: int = 1) -> None:
        self._interval = interval
        self._parts: list[GenerateChunk] = []
        self._is_first = True

    def add(self, part: GenerateChunk) -> None:
        last = self._parts[-1] if self._parts else None
        if (
            last is None
            or not (last.token_ids and last.is_plain and part.token_ids and part.is_plain)
            or last.stage_name != part.stage_name
        ):
            self._parts.append(part)
            return
        last.text += part.text
        # Not in place: the lists may be those of a stage in this process.
        last.token_ids = last.token_ids + part.token_ids
        last.logprobs = last.logprobs + part.logprobs

    def take(self, *, all_of_them: bool) -> list[GenerateChunk]:
        """The parts that are ready."""
        parts, self._parts = self._parts, []
        if parts and self._interval > 1:
            last = parts[-1]
            is_short = last.is_plain and 0 < len(last.token_ids) < self._interval
            if is_short and not (all_of_them or self._is_first):
                self._parts.append(parts.pop())
            self._is_first = False
        return parts


# Lists that parts continue, and the fields of which the latest value counts.
_LISTS = ("token_ids", "logprobs", "prompt_logprobs", "segments", "words")
_LATEST = (
    *("modality", "finish_reason", "usage", "stage_name", "input_transcript", "language", "duration"),
    *("timings", "worker", "audio_codes", "result"),
)


class Delivered:
    """How much of an answer its parts have brought. It keeps the text and counts the rest.

    Attributes:
        sample_rate: Of the latest sound, in Hz.
    """

    def __init__(self) -> None:
        self.is_empty = True
        self.sample_rate = DEFAULT_SAMPLE_RATE
        self._text: list[str] = []
        self._reasoning = 0
        self._seconds = Fraction(0)
        self._has_transcript = False
        self._lengths = dict.fromkeys(_LISTS, 0)
        # The length of each tool call's arguments, by its index.
        self._arguments: dict[int, int] = {}

    def add(self, part: GenerateChunk) -> None:
        """Counts a part. Sound without a rate gets that of the sound before it; a transcript comes once."""
        self.is_empty = False
        if part.text:
            self._text.append(part.text)
        if part.is_plain:  # as most are
            self._lengths["token_ids"] += len(part.token_ids)
            self._lengths["logprobs"] += len(part.logprobs)
            return
        self._reasoning += len(part.reasoning)
        for name in _LISTS:
            if new := getattr(part, name):
                self._lengths[name] += len(new)
        for call in part.tool_calls:
            self._arguments[call.index] = self._arguments.get(call.index, 0) + len(call.arguments)
        if part.input_transcript is not None:
            part.input_transcript = None if self._has_transcript else part.input_transcript
            self._has_transcript = True
        self.sample_rate = part.sample_rate or self.sample_rate
        if part.audio_data is not None:
            part.sample_rate = self.sample_rate
            self._seconds += Fraction(len(to_mono(part.audio_data)), self.sample_rate)

    def time_words(self, part: GenerateChunk) -> None:
        """The words of a stage's chunk, timed from where its sound begins, get the times of the answer."""
        before = float(self._seconds)
        part.words = [
            TranscriptionWord(each.word, before + each.start, before + each.end) for each in part.words
        ]

    def rest_of(self, whole: GenerateChunk) -> GenerateChunk:
        """What of a whole answer no part has brought.

        A text that does not begin with the one of the parts adds nothing: theirs stands.
        """
        if whole.audio_data is not None:
            whole.sample_rate = whole.sample_rate or self.sample_rate
        if self.is_empty:
            return whole
        text = "".join(self._text)
        rest: dict[str, Any] = {name: getattr(whole, name)[count:] for name, count in self._lengths.items()}
        if text:
            rest["text"] = whole.text[len(text) :] if whole.text.startswith(text) else ""
        samples = whole.samples
        if samples is not None:
            assert whole.sample_rate is not None
            samples = samples[round(self._seconds * whole.sample_rate) :]
        rest["audio_data"] = samples if samples is not None and len(samples) else None
        calls = [self._rest_of_call(call) for call in whole.tool_calls]
        return replace(
            whole,
            reasoning=whole.reasoning[self._reasoning :],
            tool_calls=[call for call in calls if call is not None],
            input_transcript=None if self._has_transcript else whole.input_transcript,
            **rest,
        )

    def _rest_of_call(self, call: ToolCall) -> ToolCall | None:
        length = self._arguments.get(call.index)
        if length is None:
            return call
        return (
            ToolCall(call.index, arguments=call.arguments[length:]) if len(call.arguments) > length else None
        )


class AnswerBuilder:
    """The whole answer to one request, joined from its parts.

    Attributes:
        last: The last part so far.
    """

    def __init__(self) -> None:
        self.last: GenerateChunk | None = None
        self._whole: GenerateChunk | None = None
        self._is_single = True
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._sound: list[Samples] = []
        self._resampler: Resampler | None = None

    def join(self, part: GenerateChunk) -> None:
        whole = self._whole
        if whole is None:
            whole = self._whole = GenerateChunk(part.request_id)
        else:
            self._is_single = False
        self.last = part
        if part.text:
            self._text.append(part.text)
        if part.reasoning:
            self._reasoning.append(part.reasoning)
        for name in _LISTS:
            if new := getattr(part, name):
                getattr(whole, name).extend(new)
        for name in _LATEST:
            value = getattr(part, name)
            if value is not None and not (name == "audio_codes" and not value):
                setattr(whole, name, value)
        join_tool_calls(whole.tool_calls, part.tool_calls)
        if (samples := part.samples) is not None:
            rate = part.sample_rate or DEFAULT_SAMPLE_RATE
            self._resampler = self._resampler or Resampler(rate)
            self._sound.append(self._resampler.add(samples, rate))

    @property
    def text(self) -> str:
        return "".join(self._text)

    def whole(self) -> GenerateChunk:
        """All parts as one: a single part as it is, several with their sound at the rate of the first.

        Raises:
            ValueError: There is no part.
        """
        if self._whole is None or self.last is None:
            raise ValueError("an answer without a part")
        if self._is_single:
            return self.last
        whole = replace(self._whole, text=self.text, reasoning="".join(self._reasoning))
        if self._resampler is not None:
            whole.sample_rate = self._resampler.rate
            whole.audio_data = np.concatenate([*self._sound, self._resampler.finish()])
        return whole


def read_result(request_id: str, result: Any, finish_reason: str = "stop") -> GenerateChunk:
    """The whole answer of one terminal stage's result, or of ``{stage: result}`` of several.

    Args:
        finish_reason: Of a result that has none.
    """
    if is_merged(result):
        parts = [read_chunk(request_id, part) for part in result.values() if part is not None]
        spoken = next((part for part in parts if part.modality == "audio"), None)
        chunk = next((part for part in parts if part.modality != "audio"), parts[0])
        if spoken is not None:
            chunk.audio_data, chunk.sample_rate = spoken.audio_data, spoken.sample_rate
            chunk.audio_codes, chunk.words = spoken.audio_codes, spoken.words
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
    if isinstance(data, (dict, Mapping)):
        for name, value in data.items():
            if value is not None and (read := _READ.get(name)) is not None:
                read(chunk, value)
        if chunk.audio_data is not None:
            chunk.modality = "audio"
    elif isinstance(data, int) and not isinstance(data, bool):
        chunk.token_ids = [data]
    elif data is not None:
        chunk.text = str(data)
    return chunk


_TOKEN_FIELDS = {"modality", "text", "token_ids"}


def token_part(request_id: str, data: Any, stage: str | None) -> GenerateChunk | None:
    """``read_chunk`` of what an engine's step adds to a text, as most chunks are; None of any other."""
    if type(data) is not dict or data.keys() != _TOKEN_FIELDS:
        return None
    text, token_ids = data["text"], data["token_ids"]
    if data["modality"] != "text" or type(text) is not str or type(token_ids) is not list:
        return None
    return GenerateChunk(request_id, text, stage_name=stage, token_ids=token_ids)


def is_merged(result: Any) -> bool:
    """True for ``{stage: result}`` of several terminal stages."""
    return (
        isinstance(result, dict)
        and len(result) > 1
        and any(isinstance(part, dict) for part in result.values())
        and all(part is None or isinstance(part, dict) for part in result.values())
        and not _RESULT_FIELDS.intersection(result)
    )


_RESULT_FIELDS = {"text", "modality", "audio_data", "audio", "token_ids", "finish_reason"}


def _reader(name: str, convert: Callable[[Any], Any] | None = None) -> Callable[[GenerateChunk, Any], None]:
    def read(chunk: GenerateChunk, value: Any) -> None:
        setattr(chunk, name, value if convert is None else convert(value))

    return read


def _read_text(chunk: GenerateChunk, text: Any) -> None:
    if isinstance(text, str):
        chunk.text = text


def _read_audio(chunk: GenerateChunk, audio: Any) -> None:
    if chunk.audio_data is None:
        chunk.audio_data = audio


def _listed(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _frames(codes: Any) -> list[list[int]]:
    return codes.tolist() if hasattr(codes, "tolist") else [list(frame) for frame in codes]


def _each(make: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda values: [make(value) for value in values]


# How a stage's fields are read, by their names in ``sglang_omni.proto.tasks``.
_READ: dict[str, Callable[[GenerateChunk, Any], None]] = {
    "text": _read_text,
    "modality": lambda chunk, value: setattr(chunk, "modality", value or chunk.modality),
    "audio_data": _reader("audio_data"),
    "audio": _read_audio,
    "codes": _reader("audio_codes", _frames),
    "token_ids": _reader("token_ids", _listed),
    "usage": _reader("usage", UsageInfo.from_dict),
    "segments": _reader("segments", _each(TranscriptionSegment.from_dict)),
    "words": _reader("words", _each(TranscriptionWord.from_dict)),
    "tool_calls": _reader("tool_calls", _each(lambda call: ToolCall(**call))),
    "logprobs": _reader("logprobs", _each(TokenLogprob.from_wire)),
    "prompt_logprobs": _reader("prompt_logprobs", _each(TokenLogprob.from_wire)),
    **{
        name: _reader(name)
        for name in (
            *("sample_rate", "finish_reason", "stage_name", "input_transcript", "language", "duration"),
            *("reasoning", "spoken_text"),
        )
    },
}
