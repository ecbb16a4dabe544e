"""The request parameters of models that see and hear, and may speak by a talker and a codec."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import CHAT, TEXT_SAMPLING, RequestParams, TaskParams

TALKER_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
TALKER = (*TALKER_SAMPLING, "seed", "speaker", "voice")
_VIDEO = ("video_fps", "use_audio_in_video")
_SPOKEN = ("voice", "speaker", *(f"talker_{name}" for name in TALKER_SAMPLING))


def request_params_with(code2wav: tuple[str, ...]) -> RequestParams:
    """The parameters of each task.

    Args:
        code2wav: Those of the codec's stage.
    """
    stages = {"thinker": TEXT_SAMPLING, "talker": TALKER, "code2wav": code2wav}
    return {
        "chat": TaskParams(
            general=(*TEXT_SAMPLING, *CHAT, *_VIDEO, *_SPOKEN),
            stages={"preprocess": _VIDEO, **stages},
            spoken=(*_SPOKEN, "talker", "code2wav"),
        ),
        "completion": TaskParams(
            general=(*TEXT_SAMPLING, "parse_special_tokens", *_SPOKEN),
            stages=stages,
            spoken=(*_SPOKEN, "talker", "code2wav"),
        ),
    }
