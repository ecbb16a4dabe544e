"""The request parameters of models that see and hear, and may speak by a talker and a codec."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import CHAT, TEXT_SAMPLING, RequestParams, TaskParams

TALKER_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
_TALKER = tuple(f"talker_{name}" for name in TALKER_SAMPLING)
_VIDEO = ("video_fps", "use_audio_in_video")
_SPOKEN = ("voice", "speaker", *_TALKER)


def stage_params_with(code2wav: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Parameters in ``stage_params``, by stage; other stages have none.

    Args:
        code2wav: Those of the codec's stage.
    """
    return {
        "preprocess": _VIDEO,
        "thinker": TEXT_SAMPLING,
        "talker": (*TALKER_SAMPLING, "seed", "speaker", "voice"),
        "code2wav": code2wav,
    }


def request_params_with(stages: dict[str, tuple[str, ...]]) -> RequestParams:
    """The parameters of each task, of a pipeline whose stages take ``stages``."""
    return {
        "chat": TaskParams(
            general=(*TEXT_SAMPLING, *CHAT, *_VIDEO, *_SPOKEN),
            stages=stages,
            spoken=(*_SPOKEN, "talker", "code2wav"),
        ),
        "completion": TaskParams(
            general=(*TEXT_SAMPLING, "parse_special_tokens", *_SPOKEN),
            stages={stage: names for stage, names in stages.items() if stage != "preprocess"},
            spoken=(*_SPOKEN, "talker", "code2wav"),
        ),
    }
