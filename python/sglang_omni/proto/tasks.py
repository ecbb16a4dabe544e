"""What a request of each task brings into a pipeline, and what the pipeline answers.

All of these are plain dicts while they travel: ``TextResult(text="Hello")`` is ``{"text": "Hello"}``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Required, TypedDict

Task = Literal["chat", "completion", "speech", "transcription", "translation", "voice", "duplex"]
# What a voice knows the times of.
Granularity = Literal["word", "sentence"]
TASKS: tuple[Task, ...] = (
    *("chat", "completion", "speech", "transcription", "translation", "voice", "duplex"),
)


class EncodedVoice(TypedDict, total=False):
    """A voice as a model reads it, made from a recording once.

    Attributes:
        codes: (frames, groups) integers, the recording's; an array, or a tensor.
        text: What the recording says; None or left out if that is not known.
        speaker: (n,) float32, the voice itself, of models that read it as a vector.
    """

    codes: Required[Any]
    text: str | None
    speaker: Any


class ChatInputs(TypedDict, total=False):
    """``OmniRequest.inputs`` of ``/v1/chat/completions`` and ``/v1/realtime``: OpenAI's messages, and
    the kept voice that speaks the answer."""

    messages: Required[list[dict[str, Any]]]
    voice: EncodedVoice


class CompletionInputs(TypedDict, total=False):
    """``OmniRequest.inputs`` of ``/v1/completions`` and ``/generate``: one of the two."""

    prompt: str
    prompt_token_ids: list[int]


class SpeechInputs(TypedDict, total=False):
    """``OmniRequest.inputs`` of ``/v1/audio/speech``: the text to speak, and the kept voice for it."""

    text: Required[str]
    voice: EncodedVoice


class VoiceInputs(TypedDict):
    """``OmniRequest.inputs`` of an upload to ``/v1/audio/voices``: an encoded file, and what it says."""

    audio: bytes
    text: str | None


class TranscriptionInputs(TypedDict):
    """``OmniRequest.inputs`` of ``/v1/audio/transcriptions`` and ``.../translations``: an encoded file."""

    audio: bytes


class SoundInputs(TypedDict):
    """``OmniRequest.inputs`` of a transcription whose sound comes while it runs, and of ``duplex``, which
    answers sound while it listens.

    The stage with ``takes_input`` gets the sound as a stream of float32 arrays (n,) at ``sample_rate`` Hz.
    """

    sample_rate: int


class TokenUsage(TypedDict, total=False):
    """Token counts in OpenAI's form; ``total_tokens`` is the sum of the two if it is left out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class SpokenWord(TypedDict):
    """A word as it is written in the text, without the spaces around it; or a sentence, of a voice that knows
    only these.

    ``start`` and ``end`` in seconds: in a transcript from where the recording begins, in speech from the
    first sample of the ``audio_data`` that it comes with.
    """

    word: str
    start: float
    end: float


def later(words: Iterable[SpokenWord], seconds: float) -> list[SpokenWord]:
    """The words of sound that follows ``seconds`` of other sound, timed from where all of it begins.

    Below 0, so much of the sound's own beginning was cut off.
    """
    return [
        SpokenWord(word=each["word"], start=max(0.0, seconds + each["start"]), end=seconds + each["end"])
        for each in words
    ]


class TranscriptPiece(TypedDict, total=False):
    """A stretch of a transcript, as OpenAI's segments; ``start`` and ``end`` in seconds."""

    start: Required[float]
    end: Required[float]
    text: Required[str]
    words: list[SpokenWord]
    seek: int
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TextChunk(TypedDict, total=False):
    """What a stage adds to the text of an answer, sent while it works.

    Attributes:
        text: The new text alone.
        token_ids: The new tokens.
        reasoning: New text of what a thinking model writes before its answer.
        tool_calls: What is new of calls of tools: dicts of ``index``, ``id``, ``name``, ``arguments``.
        logprobs: Of the new tokens.
        segments: The new stretches of a transcript.
        input_transcript: What the request's own sound says.
        modality: ``"text"``, which may be left out.
    """

    text: str
    token_ids: list[int]
    reasoning: str
    tool_calls: list[dict[str, Any]]
    logprobs: list[dict[str, Any]]
    segments: list[TranscriptPiece]
    input_transcript: str
    modality: str


class AudioChunk(TypedDict, total=False):
    """What a stage adds to the sound of an answer, sent while it works.

    Attributes:
        audio_data: The new samples: float of shape (n,), in [-1, 1], an array or a tensor.
        sample_rate: Hz, the same for all chunks of an answer.
        text: New text of the answer, if it comes with the sound.
        spoken_text: The text that these samples speak, if another stage sends the text of the answer.
        words: Those that begin in these samples, in their order, if the model knows its words' times; an
            ``end`` may lie after the samples.
        modality: ``"audio"``, which may be left out.
    """

    audio_data: Required[Any]
    sample_rate: Required[int]
    text: str
    spoken_text: str
    words: list[SpokenWord]
    modality: str


class TextResult(TypedDict, total=False):
    """The whole answer to a chat or a completion, in text.

    Attributes:
        finish_reason: ``"stop"`` (if it is left out), ``"length"`` or ``"tool_calls"``.
        token_ids, reasoning, tool_calls, logprobs, input_transcript: As in ``TextChunk``, whole.
        prompt_logprobs: Of the prompt's tokens.
        modality: ``"text"``, which may be left out.
    """

    text: Required[str]
    finish_reason: str | None
    usage: TokenUsage
    token_ids: list[int]
    reasoning: str
    tool_calls: list[dict[str, Any]]
    logprobs: list[dict[str, Any]]
    prompt_logprobs: list[dict[str, Any]]
    input_transcript: str | None
    modality: str


class AudioResult(TypedDict, total=False):
    """The whole answer in sound: to a text to speak, or with its ``text`` to a chat.

    Attributes:
        audio_data: float of shape (n,), in [-1, 1], an array or a tensor. A stage that has streamed all of
            it sends None to the caller.
        sample_rate: Hz.
        codes: The codec's codes of each frame, shape (frames, groups).
        words: All of them, if the model knows their times.
    """

    audio_data: Required[Any]
    sample_rate: Required[int]
    text: str
    finish_reason: str | None
    usage: TokenUsage
    codes: Any
    words: list[SpokenWord]
    modality: str


class Transcript(TypedDict, total=False):
    """The whole answer to a recording.

    Attributes:
        language: A code, such as ``"en"``.
        duration: Seconds of the recording.
        segments: Its stretches, for subtitles and ``verbose_json``.
    """

    text: Required[str]
    language: str
    duration: float
    segments: list[TranscriptPiece]
    modality: str


class VoiceResult(TypedDict):
    """The whole answer to the recording of a voice.

    Attributes:
        voice: Without ``text``, which the caller knows; its values are arrays.
        seconds: Of the recording.
    """

    voice: EncodedVoice
    seconds: float
