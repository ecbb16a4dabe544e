"""Which stages a request passes through. Every function is named by its dotted path in the config."""

from __future__ import annotations

from sglang_omni.preprocessing.request import answers_in_speech, task_of
from sglang_omni.proto import OmniRequest, StagePayload


def terminal_stages(request: OmniRequest) -> list[str]:
    """The stages whose results make up the answer."""
    if task_of(request) == "speech":
        return ["speak"]
    return ["decode", "speak"] if answers_in_speech(request) else ["decode"]


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """Spoken input is transcribed first; speech is prepared to follow the answer as it is written."""
    task = task_of(output.request)
    if task == "speech":
        return ["speak"]
    first = "transcribe" if output.data.get("clips") else "thinker"
    return [first, "speak"] if answers_in_speech(output.request) else [first]


def after_transcribe(request_id: str, output: StagePayload) -> list[str]:
    """A transcript is the result itself, or part of a prompt."""
    return ["decode"] if task_of(output.request) in ("transcription", "translation") else ["thinker"]


def thinker_stream_ends(request_id: str, output: StagePayload) -> list[str]:
    """Who is told that the answer is complete."""
    return ["speak"] if answers_in_speech(output.request) else []


def to_speak(payload: StagePayload) -> StagePayload:
    """What the voice needs: the text to say, or nothing where it will come as a stream."""
    text = payload.data.get("text")
    return StagePayload(payload.request_id, payload.request, {} if text is None else {"text": text})
