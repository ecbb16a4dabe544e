"""Routing of requests between the stages of speech-chat; the config names the functions."""

from __future__ import annotations

from sglang_omni.preprocessing.request import answers_in_speech, task_of
from sglang_omni.proto import OmniRequest, StagePayload

# What the payload of a request with sound has one of.
_SOUND = {"clips", "audio", "sample_rate"}


def terminal_stages(request: OmniRequest) -> list[str]:
    """The stages whose results make up the answer."""
    if task_of(request) in ("speech", "voice"):
        return ["speak"]
    return ["decode", "speak"] if answers_in_speech(request) else ["decode"]


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """Audio is transcribed first; the request of a spoken answer also goes to the voice, which waits."""
    task = task_of(output.request)
    if task in ("speech", "voice"):
        return ["speak"]
    first = "transcribe" if output.data.keys() & _SOUND else "thinker"
    return [first, "speak"] if answers_in_speech(output.request) else [first]


def after_transcribe(request_id: str, output: StagePayload) -> list[str]:
    """A transcript is either the result or part of a prompt."""
    return ["decode"] if task_of(output.request) in ("transcription", "translation") else ["thinker"]


def thinker_stream_ends(request_id: str, output: StagePayload) -> list[str]:
    """The stages to notify of the end of the answer."""
    return ["speak"] if answers_in_speech(output.request) else []


def to_speak(payload: StagePayload) -> StagePayload:
    """The payload of the stage that speaks: the text, unless it comes as a stream, and the kept voice; or the
    recording of a voice to keep."""
    data = payload.data
    if task_of(payload.request) != "voice":
        data = {name: data[name] for name in ("text", "voice") if name in data}
    return StagePayload(payload.request_id, payload.request, data)
