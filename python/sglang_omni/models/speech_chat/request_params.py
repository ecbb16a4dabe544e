"""The request parameters of the speech-chat pipeline, and of one whose thinker takes messages."""

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

# Those that servers of OpenAI's API know by these names or others; which of them one takes, it says itself.
_SENT = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "stop", "max_new_tokens", "json_schema"),
)
_ASKED = ("chat_template_kwargs", "reasoning_effort", "tools", "tool_choice", "parallel_tool_calls")

# Of a pipeline whose thinker is a server elsewhere, which makes the prompts.
REQUEST_PARAMS_OF_MESSAGES: RequestParams = {
    "chat": TaskParams(
        (*_SENT, "voice", "speed", *_ASKED), {"thinker": _SENT, "speak": _SPEAK}, _WRITTEN.spoken
    ),
    **{task: REQUEST_PARAMS[task] for task in ("speech", "transcription", "translation")},
}
