"""The request parameters of Qwen3-Omni."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import CHAT, TEXT_SAMPLING, RequestParams, TaskParams

TALKER_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
_TALKER = tuple(f"talker_{name}" for name in TALKER_SAMPLING)
_VIDEO = ("video_fps", "use_audio_in_video")

# Parameters in ``stage_params``, by stage; other stages have none.
STAGE_PARAMS: dict[str, tuple[str, ...]] = {
    "preprocess": _VIDEO,
    "thinker": TEXT_SAMPLING,
    "talker": (*TALKER_SAMPLING, "seed", "speaker", "voice"),
    "code2wav": ("chunking", "chunk_size", "left_context_size"),
}
_SPOKEN = ("voice", "speaker", *_TALKER)

REQUEST_PARAMS: RequestParams = {
    "chat": TaskParams(
        general=(*TEXT_SAMPLING, *CHAT, *_VIDEO, *_SPOKEN),
        stages=STAGE_PARAMS,
        spoken=(*_SPOKEN, "talker", "code2wav"),
    ),
    "completion": TaskParams(
        general=(*TEXT_SAMPLING, "parse_special_tokens", *_SPOKEN),
        stages={stage: names for stage, names in STAGE_PARAMS.items() if stage != "preprocess"},
        spoken=(*_SPOKEN, "talker", "code2wav"),
    ),
}
