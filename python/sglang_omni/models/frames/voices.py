"""Voices to keep: a recording, checked and encoded once, and what is read of it afterwards.

The recording of a request of the task ``voice`` is decoded by the preprocess stage, encoded by the reference
stage like any other, and sent back by the voice stage. A text may then come with what was sent back.
"""

from __future__ import annotations

import numpy as np
import torch

from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.preprocessing.request import without_inputs
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.proto.tasks import EncodedVoice, VoiceResult
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

# The form's fields.
AUDIO, TEXT = "audio_sample", "ref_text"
# Less is no voice to imitate.
_LEAST_SECONDS = 1.0
# Of the loudest tenth of a second: -60 dB of full scale, below any voice and any microphone's noise.
_SILENCE = 1e-3


def checked_recording(recording: VoiceRecording, sample_rate: int) -> float:
    """The recording's length in seconds.

    Raises:
        RequestError: It is too short, or silent.
    """
    samples = recording["samples"]
    seconds = len(samples) / sample_rate
    if seconds < _LEAST_SECONDS:
        raise RequestError(
            f"{AUDIO} is {seconds:.2f} s long: record {_LEAST_SECONDS:g} s of one voice at least; 5 to 15 s "
            "sound best",
            param=AUDIO,
            code="audio_too_short",
        )
    windows = samples[: len(samples) // (window := sample_rate // 10) * window].unflatten(0, (-1, window))
    if float(windows.square().mean(-1).max()) < _SILENCE**2:
        raise RequestError(
            f"{AUDIO} is silent: record one person who speaks, close to the microphone",
            param=AUDIO,
            code="invalid_audio",
        )
    return seconds


def to_encode(payload: StagePayload, recording: VoiceRecording, seconds: float) -> StagePayload:
    """The payload of the reference stage, for a voice to keep."""
    data = SpeechParts(parts=[], opening=[], recording=recording, seconds=seconds)
    return without_inputs(payload, data)


def create_voice() -> SimpleScheduler:
    """The stage that answers with a voice to keep."""
    return SimpleScheduler(_voice)


def _voice(payload: StagePayload) -> StagePayload:
    data: SpeechParts = payload.data
    # Codes are some thousands at most.
    voice = EncodedVoice(codes=data["reference_codes"].cpu().numpy().astype(np.int32))
    if (speaker := data.get("speaker")) is not None:
        voice["speaker"] = speaker.float().cpu().numpy()
    result = VoiceResult(voice=voice, seconds=data["seconds"])
    return StagePayload(payload.request_id, payload.request, result)


def add_voice(data: SpeechParts, voice: EncodedVoice) -> None:
    """Put a kept voice where the reference stage would put that of a recording.

    Its arrays are copied: those that were received cannot be written.
    """
    data["reference_codes"] = torch.from_numpy(np.array(voice["codes"], np.int64))
    if (speaker := voice.get("speaker")) is not None:
        data["speaker"] = torch.from_numpy(np.array(speaker, np.float32))
