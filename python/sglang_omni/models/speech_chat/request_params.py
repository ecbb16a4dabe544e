"""The request parameters of the speech-chat pipeline."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import CHAT, TEXT_SAMPLING, RequestParams, TaskParams

_SPEAK = ("voice", "speed", "seed")
_WRITTEN = TaskParams(
    general=(*TEXT_SAMPLING, "voice", "speed"),
    stages={"thinker": TEXT_SAMPLING, "speak": _SPEAK},
    spoken=("voice", "speed", "speak"),
)
_HEARD = ("language", "prompt", "temperature", "word_timestamps")
_TRANSCRIBED = TaskParams(general=_HEARD, stages={"transcribe": _HEARD})

REQUEST_PARAMS: RequestParams = {
    "chat": TaskParams((*_WRITTEN.general, *CHAT), _WRITTEN.stages, _WRITTEN.spoken),
    "completion": TaskParams((*_WRITTEN.general, "parse_special_tokens"), _WRITTEN.stages, _WRITTEN.spoken),
    "speech": TaskParams(general=(*_SPEAK, "language"), stages={"speak": (*_SPEAK, "language")}),
    "transcription": _TRANSCRIBED,
    "translation": _TRANSCRIBED,
}
