"""A text's way through the pipeline to encoded speech, which all routes for speech share."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
from starlette.requests import HTTPConnection

from sglang_omni.generation.audio import DEFAULT_SAMPLE_RATE, AudioFileEncoder, Samples, check_format
from sglang_omni.generation.fields import TranscriptionWord, UsageInfo
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.generation.results import SpeechResult, to_speech
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import EncodedVoice
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.models.speech import SpeechFields
from sglang_omni.serve.observe.playback_metrics import listening
from sglang_omni.serve.routes.constraints import renamed_params
from sglang_omni.serve.state import AppState
from sglang_omni.serve.word_times import WordTimes, check_granularities

_REFERENCES = ("ref_audio", "ref_text")


def check_speech(
    server: AppState,
    fields: SpeechFields,
    stage_params: dict[str, dict[str, Any]] | None,
    owner: str | None,
) -> EncodedVoice | None:
    """Names the voice that speaks in ``fields``, and takes instructions out that a model has no use for.

    Args:
        owner: Whose kept voices may speak.

    Returns:
        The kept voice that speaks, if it is one.

    Raises:
        RequestError: The pipeline cannot speak like this.
    """
    server.check_task("speech")
    check_cloning(server, fields)
    kept = server.encoded_voice(fields.voice, "voice", owner)
    if kept is None:
        fields.voice = server.check_voice(fields.voice, "voice", owner)
    for name in _REFERENCES:
        if kept is not None and getattr(fields, name) is not None:
            raise RequestError(
                f"{name}: {fields.voice!r} is a voice that has its recording already; give one of the two",
                param=name,
                code="invalid_value",
            )
    if fields.max_tokens is not None and fields.max_new_tokens not in (None, fields.max_tokens):
        raise RequestError(
            "max_new_tokens and max_tokens differ; give one", param="max_new_tokens", code="invalid_value"
        )
    if fields.instructions and not server.takes("speech", "instructions"):
        server.ignore("instructions", "of no effect on this model's speech")
        fields.instructions = None
    check_granularities(server, fields.timestamp_granularities)
    with renamed_params({"max_new_tokens": "max_tokens"} if fields.max_new_tokens is None else {}):
        server.check_params("speech", fields.given, stage_params)
    return kept


def check_cloning(server: AppState, fields: SpeechFields) -> None:
    """
    Raises:
        RequestError: The request brings a voice of its own to a model that has only its own.
    """
    takes = server.capabilities.request_params
    if takes is None:
        return
    general = takes["speech"].general if "speech" in takes else ()
    for name in _REFERENCES:
        if getattr(fields, name) is not None and name not in general:
            raise RequestError(
                f"{name}: the model {server.served_name!r} does not clone voices; {own_voices(server)}",
                param=name,
                code="unsupported_parameter",
            )


def own_voices(server: AppState) -> str:
    """Which voices the model has, for errors."""
    return f"it has {', '.join(sorted(server.capabilities.voices or ())) or 'one voice'}"


def check_encodable(response_format: str, param: str) -> None:
    try:
        check_format(response_format)
    except ValueError as exc:
        raise RequestError(f"{param}: {exc}", param=param, code="unsupported_value") from exc


def speech_request(
    server: AppState,
    connection: HTTPConnection,
    text: str,
    fields: SpeechFields,
    *,
    stream: bool,
    model: str | None,
    session_id: str | None,
    stage_params: dict[str, dict[str, Any]] | None,
    timeout: float | None,
    timings: bool = False,
    voice: EncodedVoice | None = None,
) -> GenerateRequest:
    """The pipeline's request for one text.

    Args:
        connection: Tells whose request it is.
        timeout: Of the request itself; the server's own may be shorter.
        voice: The kept voice that ``fields`` name, if they do.
    """
    params = fields.given
    if voice is not None:
        del params["voice"]
    return GenerateRequest(
        model=model,
        session_id=session_id,
        owner=owner_of(connection),
        prompt=text,
        voice=voice,
        stage_params=stage_params,
        extra_params=params,
        stream=stream,
        output_modalities=["audio"],
        metadata={"task": "speech"},
        timeout=server.timeout(timeout),
        timings=timings,
    )


def usage_fields(usage: UsageInfo | None) -> dict[str, int]:
    """A speech's usage as OpenAI's events have it; unknown counts are 0."""
    usage = usage or UsageInfo()
    return {
        "input_tokens": usage.prompt_tokens or 0,
        "output_tokens": usage.completion_tokens or 0,
        "total_tokens": usage.total_tokens or 0,
    }


async def with_times(result: SpeechResult, times: WordTimes) -> dict[str, Any]:
    """A whole speech as JSON, with its words."""
    audio = await asyncio.to_thread(base64.b64encode, result.audio_bytes)
    return {
        "audio": audio.decode("ascii"),
        "format": result.format,
        "sample_rate": result.sample_rate,
        "duration": result.duration,
        "granularity": times.granularity,
        "words": times.add(result.words, last=True),
        "usage": usage_fields(result.usage),
        "finish_reason": result.finish_reason,
    }


async def whole_speech(
    server: AppState, generate: GenerateRequest, audio_format: str, request_id: str
) -> SpeechResult:
    """A text's speech as one file."""
    return await to_speech(await server.transport.whole(generate, request_id), audio_format)


class EncodedSpeech:
    """A text's speech, encoded while it is made.

    Attributes:
        usage, finish_reason: Known after the last piece.
    """

    def __init__(
        self, server: AppState, generate: GenerateRequest, audio_format: str, request_id: str
    ) -> None:
        self.encoder = AudioFileEncoder(audio_format)
        self.usage: UsageInfo | None = None
        self.finish_reason = "stop"
        self._words: list[TranscriptionWord] = []
        self._parts = server.transport.parts(generate, request_id)
        self._metrics = server.metrics
        self._began = time.monotonic()

    def take_words(self) -> list[TranscriptionWord]:
        """Those that begin in the sound that has come since the last call, if the pipeline tells."""
        words, self._words = self._words, []
        return words

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yields the file's pieces, none of them empty."""
        encoder, is_first = self.encoder, True
        async with aclosing(self._parts) as parts:
            with listening(self._metrics) as play:
                async for part in parts:
                    self.usage = part.usage or self.usage
                    self.finish_reason = part.finish_reason or self.finish_reason
                    self._words += part.words
                    if (samples := part.samples) is None:
                        continue
                    rate = part.sample_rate or DEFAULT_SAMPLE_RATE
                    play(0, len(samples) / rate)
                    early = is_first and encoder.compresses
                    for cut in _cut(samples, rate) if early else (samples,):
                        piece = await encoder.off_loop(encoder.encode, cut, rate)
                        if piece and is_first:
                            self._metrics.first_output(time.monotonic() - self._began)
                            is_first = False
                        if piece:
                            yield piece
        self._metrics.finished(self.usage)
        if piece := await encoder.off_loop(encoder.finish):
            yield piece


def _cut(samples: Samples, rate: int) -> tuple[Samples, ...]:
    """The first quarter of a second, and the rest: a listener need not wait until seconds are compressed."""
    return tuple(part for part in np.split(samples, [rate // 4]) if len(part))
