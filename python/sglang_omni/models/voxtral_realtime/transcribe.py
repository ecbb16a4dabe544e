"""The transcribe stage: payloads and sound to requests of its engine, and these to transcripts."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import cast

import numpy as np
from soxr import ResampleStream

from sglang_omni.engines import EngineRequest
from sglang_omni.engines.request import FinishReason
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.recordings.recording import SAMPLE_RATE, SoundReader
from sglang_omni.models.voxtral_realtime.components.tekken import Tekken
from sglang_omni.models.voxtral_realtime.ears import HeardSound
from sglang_omni.models.voxtral_realtime.preprocess import VoxtralRealtimeInput
from sglang_omni.models.voxtral_realtime.text import HeardText
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.preprocessing.request import stage_params, wants_stream
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.proto.tasks import Transcript
from sglang_omni.scheduling.messages import OutgoingMessage


class VoxtralRealtimeTranscriber:
    """The callbacks of the stage's ``OmniScheduler``.

    Args:
        reach: As ``HeardSound`` has it.
        readers: Threads that decode recordings.
        max_seconds: Length of a recording.
        decode_seconds: Time to decode one.
    """

    def __init__(
        self, tekken: Tekken, reach: int, *, readers: Executor, max_seconds: float, decode_seconds: float
    ) -> None:
        self._tekken = tekken
        self._reach = reach
        self._readers = readers
        self._max_seconds = max_seconds
        self._decode_seconds = decode_seconds

    def build_request(self, payload: StagePayload) -> EngineRequest | Future[EngineRequest]:
        """A request whose sound comes, or the future of one whose recording has to be decoded first.

        Raises:
            RequestError: A sampling parameter is out of its range. The future's, if the recording cannot be
                decoded, is too long, or takes too much time.
        """
        data: VoxtralRealtimeInput = payload.data
        params = stage_params(payload.request, "transcribe")
        given = {name: value for name, value in params.items() if value is not None}
        sampling = RequestSampling.from_params({"temperature": 0.0, **given})
        if (rate := data["sample_rate"]) is not None:
            sound = HeardSound(self._tekken, self._reach)
            if rate != SAMPLE_RATE:
                sound.resampler = ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
            return self._request(payload.request_id, sound, sampling)
        return self._readers.submit(self._read, payload.request_id, bytes(data["audio"]), sampling)

    def hear(self, request: EngineRequest, item: StreamItem) -> None:
        """The ``stream_chunk_handler``: adds sound, float32 (n,).

        Raises:
            RequestError: It is no sound, or too long.
        """
        samples, sound = np.asarray(item.data), _sound(request)
        if samples.ndim != 1 or samples.dtype != np.float32 or not np.isfinite(samples).all():
            raise RequestError("sound must be finite float32 of one dimension", code="invalid_value")
        sound.hear(samples)
        if sound.seconds > self._max_seconds:
            raise RequestError(
                f"the sound is longer than {self._max_seconds:g} s: begin another request",
                code="audio_too_long",
            )

    def end(self, request: EngineRequest, from_stage: str | None) -> FinishReason | None:
        """The ``stream_done_handler``: the sound is complete."""
        sound = _sound(request)
        sound.end()
        return None if sound.num_samples else "stop"

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        new = _text(request).take()
        if new is None or not wants_stream(payload.request):
            return []
        return [OutgoingMessage(payload.request_id, "stream", new)]

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        text, seconds = _text(request), _sound(request).seconds
        transcript = Transcript(text=text.text, language="", duration=seconds, segments=text.segments)
        return StagePayload(payload.request_id, payload.request, {**transcript})

    def _read(self, request_id: str, audio: bytes, sampling: RequestSampling) -> EngineRequest:
        reader = SoundReader(audio, max_seconds=self._max_seconds, decode_seconds=self._decode_seconds)
        sound = HeardSound(self._tekken, self._reach)
        while not reader.ended:
            sound.add(reader.read(SAMPLE_RATE))
        sound.end()
        return self._request(request_id, sound, sampling)

    def _request(self, request_id: str, sound: HeardSound, sampling: RequestSampling) -> EngineRequest:
        text = HeardText(self._tekken, sound, sampling.temperature)
        return EngineRequest(request_id, self._tekken.prompt, sampling, text, state=sound, cacheable=False)


def _sound(request: EngineRequest) -> HeardSound:
    return cast(HeardSound, request.state)


def _text(request: EngineRequest) -> HeardText:
    return cast(HeardText, request.detokenizer)
