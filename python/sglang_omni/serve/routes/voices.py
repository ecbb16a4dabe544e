"""``/v1/audio/voices``: the model's voices, and those of recordings, kept for those who sent them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from sglang_omni.generation.request import GenerateRequest
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import VoiceInputs, VoiceResult
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.front.streaming import until_disconnect
from sglang_omni.serve.front.validation import validation_error
from sglang_omni.serve.kept_voices import KeptVoice, KeptVoices
from sglang_omni.serve.models.voices import VoiceForm
from sglang_omni.serve.routes.forms import form_schema, read_form
from sglang_omni.serve.routes.speech_encoding import own_voices
from sglang_omni.serve.state import AppState, request_id_of
from sglang_omni.serve.voice_names import OPENAI_VOICES

_FILE = "audio_sample"


def voice_routes(server: AppState) -> APIRouter:
    router = APIRouter()
    schema = form_schema(
        VoiceForm, _FILE, "The recording of one person who speaks, in a format that FFmpeg reads."
    )

    @router.get("/v1/audio/voices")
    async def voices(request: Request) -> dict[str, Any]:
        """The names that ``voice`` may have, and the languages that they speak, if the pipeline tells.

        ``openai_voices`` are those of OpenAI's names for which the default voice speaks, ``uploaded_voices``
        those of the caller's recordings.
        """
        abilities, owner = server.capabilities, owner_of(request)
        own, default = abilities.voices or frozenset(), abilities.default_voice
        languages = None if abilities.spoken_languages is None else sorted(abilities.spoken_languages)
        kept = [] if server.voices is None else server.voices.of_owner(owner)
        return {
            "model": server.served_name,
            "voices": server.voice_names(owner),
            "default_voice": default,
            "openai_voices": [] if default is None else [name for name in OPENAI_VOICES if name not in own],
            "languages": languages,
            "uploaded_voices": [_listed(server, voice) for voice in kept],
        }

    @router.post("/v1/audio/voices", response_model=None, openapi_extra=schema)
    async def upload(request: Request) -> Response:
        """Keep the voice of a recording, for requests to name."""
        voices, form, sound = await _read(request, server)
        server.check_model(form.model)
        owner = owner_of(request)
        _check_name(server, form.name)
        voices.check_room(form.name, owner)
        request_id = await request_id_of(request, None)
        inputs = VoiceInputs(audio=sound, text=(form.ref_text or "").strip() or None)
        generate = GenerateRequest(
            model=form.model,
            owner=owner,
            prompt=dict(inputs),
            stream=False,
            metadata={"task": "voice"},
            timeout=server.timeout(None),
        )
        whole = await until_disconnect(request.receive, server.transport.whole(generate, request_id))
        result = cast(VoiceResult, whole.result)
        voice = KeptVoice.new(
            name=form.name,
            owner=owner,
            consent=form.consent,
            ref_text=inputs["text"],
            seconds=result["seconds"],
            encoder=voices.encoder,
        )
        await asyncio.to_thread(voices.save, voice, result["voice"])
        return JSONResponse(_described(voice))

    @router.get("/v1/audio/voices/{name}")
    async def one(name: str, request: Request) -> dict[str, Any]:
        """One of the caller's uploaded voices, by name or id."""
        return _listed(server, _found(server, name, request))

    @router.delete("/v1/audio/voices/{name}")
    async def delete(name: str, request: Request) -> dict[str, Any]:
        """Forget one of the caller's uploaded voices, by name or id."""
        if name.lower() in (server.capabilities.voices or ()):
            raise RequestError(
                f"{name!r} is a voice of the model itself, which cannot be deleted",
                param="name",
                code="unsupported_value",
            )
        voice = _found(server, name, request)
        assert server.voices is not None
        if not await asyncio.to_thread(server.voices.delete, voice):
            raise _no_voice(server, name)
        return {"id": voice.id, "object": "audio.voice.deleted", "deleted": True}

    return router


def _keeper(server: AppState) -> KeptVoices:
    """
    Raises:
        RequestError: The server keeps no voices.
    """
    if server.voices is not None:
        return server.voices
    takes = server.capabilities.request_params or {}
    clones = "speech" in takes and "ref_audio" in takes["speech"].general
    raise RequestError(
        "this server keeps no voices: start it with --voices-dir FOLDER, or send the recording with each "
        "text, as ref_audio"
        if clones
        else f"the model {server.served_name!r} takes no voices of others; {own_voices(server)}",
        param=_FILE,
        code="unsupported_value",
    )


async def _read(request: Request, server: AppState) -> tuple[KeptVoices, VoiceForm, bytes]:
    """Where voices are kept, the form, and the recording.

    Raises:
        RequestError: The server keeps no voices, or the body is no such form.
    """
    # It is read first: clients look for the answer only after they have sent everything.
    form = await read_form(request, _FILE)
    try:
        voices = _keeper(server)
        given = form.multi_items()
        sound = form.get(_FILE)
        if twice := [name for name, count in Counter(name for name, _ in given).items() if count > 1]:
            raise RequestError(f"{twice[0]}: given twice", param=twice[0], code="invalid_value")
        if not isinstance(sound, UploadFile):
            raise RequestError(
                f"{_FILE}: the recording is missing; send it as a file",
                param=_FILE,
                code="missing_required_parameter",
            )
        try:
            fields = VoiceForm.model_validate({name: value for name, value in given if name != _FILE})
        except ValidationError as exc:
            raise validation_error(exc.errors(include_url=False), VoiceForm) from exc
        return voices, fields, await sound.read()
    finally:
        await form.close()


def _check_name(server: AppState, name: str) -> None:
    """
    Raises:
        RequestError: The name is one that any client may mean another voice with.
    """
    if name.lower() in {*(server.capabilities.voices or ()), *OPENAI_VOICES}:
        raise RequestError(
            f"name: {name!r} is a voice of the model's own or one of OpenAI's; choose another name",
            param="name",
            code="voice_exists",
            status=409,
        )


def _found(server: AppState, name: str, request: Request) -> KeptVoice:
    voice = server.kept_voice(name, owner_of(request))
    if voice is None:
        raise _no_voice(server, name)
    return voice


def _no_voice(server: AppState, name: str) -> RequestError:
    return RequestError(
        f"no voice {name!r}; {own_voices(server)}", param="name", code="voice_not_found", status=404
    )


def _described(voice: KeptVoice) -> dict[str, Any]:
    """OpenAI's object."""
    return {
        "id": voice.id,
        "object": "audio.voice",
        "created_at": voice.created_at,
        "name": voice.name,
        "type": "audio_sample",
    }


def _listed(server: AppState, voice: KeptVoice) -> dict[str, Any]:
    """``usable``: whether this model can speak with it, or another one has encoded it."""
    assert server.voices is not None
    return {
        **_described(voice),
        "consent": voice.consent,
        "ref_text": voice.ref_text,
        "seconds": voice.seconds,
        "usable": server.voices.reads(voice),
    }
