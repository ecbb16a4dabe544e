"""The transcribe stage: payloads to requests of its engine, and these to transcripts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.omni.payloads import AudioInput
from sglang_omni.models.qwen3_asr.preprocess import Qwen3ASRInput
from sglang_omni.models.qwen3_asr.recording_engine import RecordingRequest
from sglang_omni.models.recordings.mel import MelFilters
from sglang_omni.models.recordings.pieces import QuietPieces
from sglang_omni.models.recordings.recording import SAMPLE_RATE, SoundReader
from sglang_omni.preprocessing.request import stage_params, wants_stream
from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import Transcript
from sglang_omni.scheduling.messages import OutgoingMessage

# The model's authors fill a shorter recording up with silence.
_SHORTEST = SAMPLE_RATE // 2
# No sample of digital silence is louder, dither included.
_SILENCE = 1e-4


@dataclass(frozen=True)
class PieceFeatures:
    """A ``ReadyPiece``."""

    start: float
    end: float
    item: AudioInput


class Qwen3ASRTranscriber:
    """The callbacks of the stage's ``OmniScheduler``.

    Args:
        chunk_frames: Frames that the encoder's convolutions take at once.
        piece_seconds: Length of a piece.
        max_seconds: Length of a recording.
        decode_seconds: Time to decode one piece.
    """

    def __init__(
        self,
        filters: MelFilters,
        chunk_frames: int,
        *,
        piece_seconds: float,
        max_seconds: float,
        decode_seconds: float,
    ) -> None:
        self._filters = filters
        self._chunk_frames = chunk_frames
        self._longest = round(piece_seconds * SAMPLE_RATE)
        self._max_seconds = max_seconds
        self._decode_seconds = decode_seconds

    def build_request(self, payload: StagePayload) -> RecordingRequest:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
        """
        data: Qwen3ASRInput = payload.data
        sound = SoundReader(
            bytes(data["audio"]), max_seconds=self._max_seconds, decode_seconds=self._decode_seconds
        )
        pieces = QuietPieces(sound, self._longest)
        params = {"temperature": 0.0, **_given(stage_params(payload.request, "transcribe"))}
        return RecordingRequest(
            payload.request_id,
            data,
            partial(self._read, pieces),
            lambda: pieces.seconds,
            RequestSampling.from_params(params),
        )

    def stream(
        self, payload: StagePayload, request: RecordingRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        news = request.take_news()
        if not wants_stream(payload.request):
            return []
        return [OutgoingMessage(payload.request_id, "stream", chunk) for chunk in news]

    def result(self, payload: StagePayload, request: RecordingRequest) -> StagePayload:
        transcript = Transcript(
            text=request.text,
            language=request.language or "",
            duration=request.seconds(),
            segments=request.segments,
        )
        return StagePayload(payload.request_id, payload.request, {**transcript})

    def _read(self, pieces: QuietPieces) -> PieceFeatures | None:
        """The next piece that is not silent."""
        while (piece := pieces.next()) is not None:
            if np.abs(piece.samples).max() < _SILENCE:
                continue
            samples = np.pad(piece.samples, (0, max(0, _SHORTEST - len(piece.samples))))
            item = AudioInput(
                # Outputs are not kept for other recordings.
                key=b"",
                input_features=self._filters.features(torch.from_numpy(samples)),
                window_frames=self._chunk_frames,
            )
            return PieceFeatures(piece.start, piece.end, item)
        return None


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
