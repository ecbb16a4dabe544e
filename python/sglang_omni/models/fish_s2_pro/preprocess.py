"""The preprocess stage: a text, and perhaps a voice, to token ids and a recording's samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.request_params import REQUEST_PARAMS
from sglang_omni.models.fish_s2_pro.voices import DEFAULT_VOICE, NamedVoice
from sglang_omni.models.frames.preprocess import SpokenLimits
from sglang_omni.models.frames.speech import SpeechParts, keeps_voice
from sglang_omni.models.frames.voices import AUDIO, checked_recording, to_encode
from sglang_omni.preprocessing.deadline import Check, never, until_aborted
from sglang_omni.preprocessing.request_params import check_params
from sglang_omni.preprocessing.sentences import passages
from sglang_omni.preprocessing.tokenizing import TextTokenizer, check_unicode
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

# Read by preprocess, and dropped: a recording must not travel on beside its samples.
_VOICE_PARAMS = ("voice", "ref_audio", "ref_text")


class FishS2Preprocessor:
    """Takes ``{"text": str}``, with a voice in the parameters ``voice``, or ``ref_audio`` and ``ref_text``.

    A kept voice comes as its codes, ``{"text": str, "voice": {"text": str, "codes": (frames, groups)}}``.

    Args:
        sample_rate: Of the codec, in Hz.
        frame_length: Samples of a frame.
        limits: Its parts are passages.
        voices: Recordings by name, in lower case.
    """

    def __init__(
        self,
        checkpoint: FishS2Checkpoint,
        tokenizer: Tokenizer,
        *,
        sample_rate: int,
        frame_length: int,
        limits: SpokenLimits,
        voices: Mapping[str, NamedVoice] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._tokenizer = TextTokenizer(tokenizer)
        self._most = checkpoint.slow.max_position_embeddings
        self._sample_rate = sample_rate
        self._frame_length = frame_length
        self._limits = limits
        self._voices = voices or {}

    def __call__(self, payload: StagePayload, aborted: Callable[[], bool] = never) -> StagePayload:
        """
        Args:
            aborted: Returns true once the request is aborted; the work then ends.

        Raises:
            RequestError: The text is missing or too long, the voice is malformed, or a parameter has no
                effect.
            Aborted: The request was aborted.
        """
        request, check = payload.request, until_aborted(aborted)
        if keeps_voice(request):
            return self._to_keep(payload, check)
        # Speech is the only other task, whatever the request's metadata say.
        check_params("speech", request.params, REQUEST_PARAMS, spoken=True)
        inputs = {"text": request.inputs} if isinstance(request.inputs, str) else request.inputs
        if not isinstance(inputs, Mapping):
            inputs = {}
        text = self._text(inputs.get("text"))
        data = SpeechParts(parts=[], opening=[])
        self._add_voice(data, inputs.get("voice"), request.params, check)
        for passage in passages(text, self._limits.part_bytes):
            data["parts"].append(self._tokens(passage, "input", check))
        if not data["parts"]:
            raise RequestError("input holds nothing to speak", param="input", code="invalid_value")
        self._check_room(data)
        params = {name: value for name, value in request.params.items() if name not in _VOICE_PARAMS}
        slim = OmniRequest(inputs=None, params=params, metadata=request.metadata)
        return StagePayload(payload.request_id, slim, data)

    def _text(self, text: Any) -> str:
        if not isinstance(text, str) or not text.strip():
            raise RequestError(
                "input: there is no text to speak", param="input", code="missing_required_parameter"
            )
        self._limits.check_length(text)
        return text

    def _add_voice(self, data: SpeechParts, given: Any, params: Mapping[str, Any], check: Check) -> None:
        name, audio, text = (params.get(param) for param in _VOICE_PARAMS)
        if text is not None and audio is None:
            raise RequestError(
                "ref_text: it says what is heard in ref_audio, which is missing",
                param="ref_text",
                code="missing_required_parameter",
            )
        if audio is not None and name not in (None, DEFAULT_VOICE):
            raise RequestError(
                f"ref_audio: the voice is {name!r} already; give one of the two",
                param="ref_audio",
                code="invalid_value",
            )
        if given is not None:
            data["reference_codes"] = self._codes(given)
            text = given.get("text")
        elif audio is not None:
            data["recording"] = self._limits.recording(audio, self._sample_rate, check)
        elif name is not None and str(name).lower() != DEFAULT_VOICE:
            voice = self._voices.get(str(name).lower())
            if voice is None:
                known = ", ".join([DEFAULT_VOICE, *self._voices])
                raise RequestError(
                    f"voice: there is no voice {name!r}; there are {known}",
                    param="voice",
                    code="unsupported_value",
                )
            data["recording"] = self._limits.recording(
                voice.sound.read_bytes(), self._sample_rate, check, param="voice"
            )
            text = voice.text
        else:
            return
        if text is not None and not isinstance(text, str):
            raise RequestError("ref_text: must be a text", param="ref_text", code="invalid_type")
        data["reference"] = self._said(text, check) if text else []

    def _said(self, text: str, check: Check) -> list[int]:
        return self._tokens(
            text if text.startswith("<|speaker:") else f"<|speaker:0|>{text}", "ref_text", check
        )

    def _to_keep(self, payload: StagePayload, check: Check) -> StagePayload:
        """The recording of a voice to keep."""
        given = payload.request.inputs
        recording = self._limits.recording(given["audio"], self._sample_rate, check, param=AUDIO)
        seconds = checked_recording(recording, self._sample_rate)
        said = self._said(given["text"], check) if given.get("text") else []
        self._check_room(SpeechParts(parts=[[]], opening=[], recording=recording, reference=said), AUDIO)
        return to_encode(payload, recording, seconds)

    def _tokens(self, text: str, param: str, check: Check) -> list[int]:
        """Token ids of a user's text, none of them a control token, however the text is spelled."""
        check_unicode(text, param)
        self._tokenizer.check_characters(text, self._most, param=param)
        return self._tokenizer.encode(self._tokenizer.hide(text), most=self._most, check=check)

    def _check_room(self, data: SpeechParts, voice_param: str = "ref_audio") -> None:
        """Refuses a voice that, with the longest passage, takes more than half of the context."""
        frames, said = len(data.get("reference_codes", ())), len(data.get("reference", ()))
        if (recorded := data.get("recording")) is not None:
            frames = -(-len(recorded["samples"]) // self._frame_length)
        tokens = frames + said + max(map(len, data["parts"]))
        if tokens > self._most // 2:
            raise RequestError(
                f"the voice, {frames} frames and {said} tokens of text, and the longest "
                f"passage are {tokens} tokens together; {self._most // 2} of the model's context may be so",
                param=voice_param if frames else "input",
                code="context_length_exceeded",
            )

    def _codes(self, voice: Any) -> Tensor:
        groups = self._checkpoint.fast.num_code_groups
        size = self._checkpoint.codebook_size
        if not isinstance(voice, Mapping) or not isinstance(voice.get("text"), str | None):
            raise RequestError(
                "a voice is an object with its codes, and perhaps the text it says",
                param="voice",
                code="invalid_type",
            )
        try:
            codes = torch.as_tensor(np.array(voice.get("codes")), dtype=torch.long)
        except (TypeError, ValueError, RuntimeError) as exc:
            raise RequestError(
                f"voice.codes are no integers: {exc}", param="voice", code="invalid_type"
            ) from exc
        if codes.dim() != 2 or codes.shape[1] != groups or len(codes) == 0:
            raise RequestError(
                f"voice.codes must be (frames, {groups}), got {tuple(codes.shape)}",
                param="voice",
                code="invalid_value",
            )
        if int(codes.min()) < 0 or int(codes.max()) >= size:
            raise RequestError(
                f"voice.codes must lie between 0 and {size - 1}", param="voice", code="invalid_value"
            )
        return codes
