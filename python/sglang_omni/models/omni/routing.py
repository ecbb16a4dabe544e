"""Routing of requests between the stages of models that may speak; configs name it by dotted path."""

from __future__ import annotations

from typing import Any

from sglang_omni.models.omni.payloads import MediaShape, Prompt, TalkerInput
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.proto import OmniRequest, StagePayload


def terminal_stages(request: OmniRequest) -> list[str]:
    """The stages whose results make up the answer."""
    return ["decode", "code2wav"] if answers_in_speech(request) else ["decode"]


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """Only the encoders that have media; for a spoken answer also talker and code2wav, which then wait."""
    return [*_encoders(output.data["media"]), "thinker", *_speech(output.request)]


def sources_of_thinker(request_id: str, from_stage: str, payload: StagePayload) -> list[str] | None:
    """The prompt's stage and the encoders of its media; not known before the prompt is there."""
    return ["preprocess", *_encoders(payload.data["media"])] if from_stage == "preprocess" else None


def sources_of_decode(request_id: str, from_stage: str, payload: StagePayload) -> list[str]:
    return ["thinker", "talker"] if answers_in_speech(payload.request) else ["thinker"]


def thinker_stream_ends(request_id: str, output: StagePayload) -> list[str]:
    """The stages to notify of the end of the answer."""
    return ["talker"] if answers_in_speech(output.request) else []


def to_image_encoder(payload: StagePayload) -> StagePayload:
    return _with(payload, {"visuals": payload.data["visuals"]})


def to_audio_encoder(payload: StagePayload) -> StagePayload:
    return _with(payload, {"audios": payload.data["audios"]})


def to_thinker(payload: StagePayload) -> StagePayload:
    """The prompt without the encoders' inputs."""
    prompt: Prompt = payload.data
    return _with(payload, {**prompt, "visuals": [], "audios": []})


def to_talker(payload: StagePayload) -> StagePayload:
    """The talker's early input; the answer and hidden states of the media come as a stream."""
    prompt: Prompt = payload.data
    return _with(payload, TalkerInput(prompt_token_ids=prompt["prompt_token_ids"], media=prompt["media"]))


def to_code2wav(payload: StagePayload) -> StagePayload:
    """The request alone; codes come as a stream."""
    return _with(payload, {})


def _speech(request: OmniRequest) -> list[str]:
    return ["talker", "code2wav"] if answers_in_speech(request) else []


def _encoders(media: MediaShape) -> list[str]:
    encoders = []
    if media["image_grids"] or media["video_grids"]:
        encoders.append("image_encoder")
    if media["audio_frames"]:
        encoders.append("audio_encoder")
    return encoders


def _with(payload: StagePayload, data: Any) -> StagePayload:
    return StagePayload(payload.request_id, payload.request, data)
