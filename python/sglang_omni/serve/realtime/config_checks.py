"""What the pipeline behind a session can do of its configuration."""

from __future__ import annotations

from typing import Any, Literal

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.config import (
    MERGED,
    SessionConfig,
    Transcription,
    chat_params,
    transcription_params,
)
from sglang_omni.serve.realtime.detectors import create_detector
from sglang_omni.serve.realtime.duplex_checks import check_duplex
from sglang_omni.serve.realtime.events import validated
from sglang_omni.serve.realtime.smart_turn import smart_turn_file
from sglang_omni.serve.realtime.turns import SemanticVad, ServerVad, TurnDetection
from sglang_omni.serve.routes.constraints import renamed_params
from sglang_omni.serve.state import AppState
from sglang_omni.serve.word_times import check_granularities

# Fields that null switches off; in others it counts as left out.
_SWITCHED_OFF = {
    *("turn_detection", "transcription", "noise_reduction", "voice", "temperature"),
    "timestamp_granularities",
}
# How long a silence ends a turn where semantic_vad was asked for and Smart Turn is not installed, in ms.
_SILENCE_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 500}
_NO_EFFECT = "of no effect here"
# The session's fields by the names that stages know.
_PARAM_NAMES = {
    "voice": "session.audio.output.voice",
    "speed": "session.audio.output.speed",
    "max_new_tokens": "session.max_output_tokens",
    "language": "session.audio.input.transcription.language",
    "prompt": "session.audio.input.transcription.prompt",
    **{name: f"session.{name}" for name in ("temperature", "tools", "tool_choice", "parallel_tool_calls")},
}


def default_config(server: AppState, model: str, kind: Literal["realtime", "transcription"]) -> SessionConfig:
    """What a session begins with: sound if the pipeline speaks, and turns by voice activity if it hears.

    Raises:
        RequestError: The pipeline does nothing of the kind.
    """
    abilities = server.capabilities
    hears = abilities.input_modalities is None or "audio" in abilities.input_modalities
    speaks = abilities.output_modalities is None or "audio" in abilities.output_modalities
    config = SessionConfig(type=kind, model=model, output_modalities=["audio" if speaks else "text"])
    config.duplex = kind == "realtime" and abilities.duplex and "chat" not in (abilities.tasks or ())
    if hears and not config.duplex:
        config.audio.input.turn_detection = _default_turns()
    if kind == "transcription":
        config.audio.input.transcription = Transcription()
    check_config(config, server)
    return config


def updated(
    config: SessionConfig,
    update: dict[str, Any],
    server: AppState,
    owner: str | None,
    prefix: str = "session.",
) -> SessionConfig:
    """The configuration with the fields of an update; ``config`` stays as it is.

    Args:
        owner: Whose session it is.
        prefix: Of the fields' names in errors.

    Raises:
        RequestError: A field is unknown, wrong, or beyond the pipeline.
    """
    merged = _merged(config.model_dump(), update)
    new = validated(SessionConfig, merged, prefix)
    if new.model != config.model:
        server.check_model(new.model)
    if (transcription := new.audio.input.transcription) is not None:
        transcription.model = server.served_name
    check_config(new, server, owner)
    return new


def _merged(old: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for name, value in update.items():
        if name in MERGED and isinstance(value, dict) and isinstance(old.get(name), dict):
            result[name] = _merged(old[name], value)
        elif value is not None or name in _SWITCHED_OFF or name not in old:
            result[name] = value
    return result


def check_config(config: SessionConfig, server: AppState, owner: str | None = None) -> None:
    """Puts what is in force into ``config``, so that ``session.updated`` says it: the voice that speaks, the
    turn detection there is, and nothing that has no effect.

    Raises:
        RequestError: The pipeline cannot do what the configuration asks for.
    """
    heard = config.audio.input
    if heard.noise_reduction is not None:
        server.ignore("session.audio.input.noise_reduction", _NO_EFFECT)
        heard.noise_reduction = None
    if config.tracing is not None:
        server.ignore("session.tracing", _NO_EFFECT)
        config.tracing = None
    if config.reasoning is not None:
        server.ignore("session.reasoning", _NO_EFFECT)
        config.reasoning = None
    if config.duplex:
        check_duplex(config, server)
    if heard.turn_detection is not None:
        server.check_input("audio", "session.audio.input.turn_detection")
        heard.turn_detection = _turns_in_force(heard.turn_detection, server)
        create_detector(heard.turn_detection)
    if heard.transcription is not None:
        server.check_task("transcription", "session.audio.input.transcription")
        with renamed_params(_PARAM_NAMES):
            server.check_params("transcription", transcription_params(heard.transcription), None)
    if config.type == "transcription":
        if heard.transcription is None:
            raise RequestError(
                "session.audio.input.transcription: a transcription session needs one",
                param="session.audio.input.transcription",
                code="missing_required_parameter",
            )
        return
    task = "duplex" if config.duplex else "chat"
    server.check_task(task, None if config.duplex else "session.duplex")
    server.check_output(config.output_modalities[0], "session.output_modalities")
    if config.is_spoken:
        output = config.audio.output
        param = "session.audio.output.voice"
        voice = output.voice_name
        if server.usable_voice(voice, param, owner) is None:
            voice = server.check_voice(voice, param, owner)
        if voice != output.voice_name:
            output.voice = voice
        check_granularities(
            server, output.timestamp_granularities, "session.audio.output.timestamp_granularities"
        )
    with renamed_params(_PARAM_NAMES):
        server.check_params(task, chat_params(config), None, spoken=config.is_spoken)


def _turns_in_force(asked: TurnDetection, server: AppState) -> TurnDetection:
    """What is asked for, or turns by silence if that needs a model that is not installed."""
    if not isinstance(asked, SemanticVad):
        return asked
    try:
        smart_turn_file()
    except ImportError as exc:
        silence_ms = _SILENCE_MS[asked.eagerness]
        server.ignore(
            "session.audio.input.turn_detection",
            str(exc),
            f"server_vad is in force, and a silence of {silence_ms} ms ends a turn",
        )
        return ServerVad(
            silence_duration_ms=silence_ms,
            create_response=asked.create_response,
            interrupt_response=asked.interrupt_response,
        )
    return asked


def _default_turns() -> ServerVad | None:
    """OpenAI's default, if there is a detector."""
    settings = ServerVad()
    try:
        create_detector(settings)
    except RequestError:
        return None
    return settings
