"""The preprocess stage: a text, and perhaps the recording of a voice, to token ids and samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.frames.speech import PromptOpening, SpeechParts, keeps_voice
from sglang_omni.models.frames.voices import AUDIO, TEXT, add_voice, checked_recording, to_encode
from sglang_omni.preprocessing.audio import decode_audio
from sglang_omni.preprocessing.deadline import Check, Deadline, never, until_aborted
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.request_params import RequestParams, check_request
from sglang_omni.preprocessing.sentences import passages
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.tasks import SpeechRequest


@dataclass(frozen=True)
class SpokenLimits:
    """Limits of a request.

    Attributes:
        speech_chars: Characters of a text to speak.
        part_bytes: Bytes of it, as UTF-8, that are one prompt.
        reference_seconds, reference_bytes: Length of a voice's recording, and its encoded size.
        decode_seconds: Time to fetch and decode it.
        allowed_media_hosts: Hosts of URLs of recordings.
    """

    speech_chars: int
    part_bytes: int
    reference_seconds: float
    reference_bytes: int
    decode_seconds: float
    allowed_media_hosts: Collection[str]

    def check_length(self, text: str) -> None:
        """
        Raises:
            RequestError: The text is too long.
        """
        if len(text) > self.speech_chars:
            problem = f"input is {len(text)} characters long; the limit is {self.speech_chars}"
            raise RequestError(problem, param="input", code="invalid_value")

    def recording(
        self, sound: str | bytes, sample_rate: int, check: Check, *, param: str = "ref_audio"
    ) -> VoiceRecording:
        """A voice's recording, fetched if it must be, and decoded.

        Args:
            sound: An encoded file, as bytes, base64, data URL or URL.
            sample_rate: Hz, of the samples.
            check: Called now and then; what it raises ends the work.
            param: Where the recording is from, for errors.

        Raises:
            RequestError: It cannot be fetched or decoded, or is too large or too long.
        """
        deadline = Deadline(self.decode_seconds, param=param, check=check)
        encoded = media_bytes(
            sound,
            param=param,
            max_bytes=self.reference_bytes,
            allowed_hosts=self.allowed_media_hosts,
            check=deadline,
        )
        clip = decode_audio(
            encoded,
            param=param,
            sample_rate=sample_rate,
            max_seconds=self.reference_seconds,
            check=deadline,
        )
        key = hashlib.sha256(clip.samples.tobytes()).digest()
        return VoiceRecording(key=key, samples=torch.from_numpy(clip.samples))


class SpokenModel(Protocol):
    """What the stage knows of a model.

    Attributes:
        context_length: The most tokens and frames of a prompt and its speech.
        sample_rate, frame_samples: Of its codec: Hz, and samples of a frame.
        voices: The names that ``voice`` may have, in any case; here in lower case, the default first.
        turn_positions: Positions of a turn of a recording, beside its text's tokens and its frames.
        least_samples: Of a recording.
        needs_recording: True if it has no voice of its own.
        needs_reference_text: True if a recording must come with what it says.
    """

    context_length: int
    sample_rate: int
    frame_samples: int
    voices: Sequence[str]
    turn_positions: int
    least_samples: int
    needs_recording: bool
    needs_reference_text: bool

    def opening(self, voice: str, params: Mapping[str, Any], check: Check) -> PromptOpening:
        """What comes before all turns, by the request's voice and parameters.

        Raises:
            RequestError: A parameter cannot have its value.
        """
        ...

    def turn(self, voice: str, text: str, check: Check) -> list[int]:
        """Token ids of a text that a voice says, none of them a control token of the user's own."""
        ...


class SpeechPreprocessor:
    """Converts the entry payload to ``SpeechParts``. The request's own inputs are dropped."""

    def __init__(self, model: SpokenModel, takes: RequestParams, limits: SpokenLimits) -> None:
        self._model, self._takes, self._limits = model, takes, limits

    def __call__(self, payload: StagePayload, aborted: Callable[[], bool] = never) -> StagePayload:
        """
        Args:
            aborted: Returns true once the request is aborted; the work then ends.

        Raises:
            RequestError: An input or parameter is not acceptable.
            Aborted: The request was aborted.
        """
        check_request(payload.request, self._takes)
        model, limits, check = self._model, self._limits, until_aborted(aborted)
        if keeps_voice(payload.request):
            return self._to_keep(payload, check)
        speech = SpeechRequest.of(payload)
        limits.check_length(speech.text)
        voice = model.voices[0] if speech.voice is None else speech.voice.lower()
        if voice not in model.voices:
            problem = f"unknown voice {voice!r}: this model's are {', '.join(model.voices)}"
            raise RequestError(problem, param="voice", code="unsupported_value")
        texts = [text for text in passages(speech.text, limits.part_bytes) if any(map(str.isalnum, text))]
        parts = [model.turn(voice, text, check) for text in texts]
        if not parts:
            raise RequestError("input holds nothing to speak", param="input", code="invalid_value")
        opening = model.opening(voice, speech.params, check)
        data = SpeechParts(parts=parts, opening=opening.text)
        if opening.tags:
            data["tags"] = list(opening.tags)
        length = len(opening.text) + len(opening.tags) + max(map(len, parts))
        params = {name: value for name, value in speech.params.items() if name != "ref_audio"}
        frames, said = 0, None
        if (kept := speech.encoded_voice) is not None:
            add_voice(data, kept)
            frames, said = len(data["reference_codes"]), kept.get("text")
        elif (reference := _reference(speech.params, model)) is not None:
            sound, said = reference
            recording = data["recording"] = limits.recording(sound, model.sample_rate, check)
            _check_recording(recording, model)
            frames = -(-len(recording["samples"]) // model.frame_samples)
        if frames:
            length += model.turn_positions
            if said is not None:
                data["reference"] = model.turn(voice, said, check)
                length += len(data["reference"]) + frames
        if length >= model.context_length:
            problem = f"text and recording take {length} of the model's {model.context_length} positions"
            param = "ref_audio" if "recording" in data else "voice" if frames else "input"
            raise RequestError(
                f"{problem}, which the speech needs too", param=param, code="context_length_exceeded"
            )
        request = OmniRequest(None, params, payload.request.metadata)
        return StagePayload(payload.request_id, request, data)

    def _to_keep(self, payload: StagePayload, check: Check) -> StagePayload:
        """The recording of a voice to keep."""
        model, given = self._model, payload.request.inputs
        said = given.get("text") or None
        if said is None and model.needs_reference_text:
            problem = "ref_text is missing: this model needs to know what is said in audio_sample"
            raise RequestError(problem, param=TEXT, code="missing_required_parameter")
        recording = self._limits.recording(given["audio"], model.sample_rate, check, param=AUDIO)
        seconds = checked_recording(recording, model.sample_rate)
        if said is not None:
            tokens = len(model.turn(model.voices[0], said, check))
            frames = -(-len(recording["samples"]) // model.frame_samples)
            if (length := tokens + frames + model.turn_positions) > model.context_length // 2:
                raise RequestError(
                    f"audio_sample and ref_text take {length} of the model's {model.context_length} "
                    "positions, of which half are left to speech: send a shorter recording",
                    param=AUDIO,
                    code="context_length_exceeded",
                )
        return to_encode(payload, recording, seconds)


def _reference(params: Mapping[str, Any], model: SpokenModel) -> tuple[str | bytes, str | None] | None:
    """The recording of a voice, and what it says if that is given; None without one."""
    sound, said = params.get("ref_audio"), params.get("ref_text")
    said = said if isinstance(said, str) and said.strip() else None
    if sound is None and said is None and not model.needs_recording:
        return None
    if sound is None or (said is None and model.needs_reference_text):
        missing = "ref_audio" if sound is None else "ref_text"
        problem = f"{missing} is missing: a voice is its recording, ref_audio, with what it says, ref_text"
        if model.needs_recording:
            problem = f"{missing} is missing: this model speaks in the voice of a recording that comes along"
        raise RequestError(problem, param=missing, code="missing_required_parameter")
    return sound, said


def _check_recording(recording: VoiceRecording, model: SpokenModel) -> None:
    length, least = len(recording["samples"]), model.least_samples
    if length < least:
        seconds, needed = length / model.sample_rate, least / model.sample_rate
        raise RequestError(
            f"ref_audio is {seconds:.3f} s long; the model needs {needed:.3f} s of a voice",
            param="ref_audio",
            code="invalid_value",
        )
