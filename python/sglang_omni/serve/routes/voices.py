"""``/v1/audio/voices``: which voices the model has. Recordings of further voices are refused by name."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from sglang_omni.proto import RequestError
from sglang_omni.serve.routes.forms import read_form
from sglang_omni.serve.routes.speech_encoding import own_voices
from sglang_omni.serve.state import AppState
from sglang_omni.serve.voice_names import OPENAI_VOICES


def voice_routes(server: AppState) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/audio/voices")
    async def voices() -> dict[str, Any]:
        """The names that ``voice`` may have, and the languages that they speak, if the pipeline tells.

        ``openai_voices`` are those of OpenAI's names for which the default voice speaks.
        """
        abilities = server.capabilities
        own, default = abilities.voices or frozenset(), abilities.default_voice
        languages = None if abilities.spoken_languages is None else sorted(abilities.spoken_languages)
        return {
            "model": server.served_name,
            "voices": sorted(own),
            "default_voice": default,
            "openai_voices": [] if default is None else [name for name in OPENAI_VOICES if name not in own],
            "languages": languages,
            "uploaded_voices": [],
        }

    @router.post("/v1/audio/voices", response_model=None)
    async def upload(request: Request) -> Response:
        """Refuse a recording of a voice."""
        # It is read first: clients look for the answer only after they have sent everything.
        form = await read_form(request)
        await form.close()
        takes = server.capabilities.request_params or {}
        clones = "speech" in takes and "ref_audio" in takes["speech"].general
        raise RequestError(
            f"the model {server.served_name!r} keeps no recordings; send one with each text, as ref_audio"
            if clones
            else f"the model {server.served_name!r} takes no voices of others; {own_voices(server)}",
            param="audio_sample",
            code="unsupported_value",
        )

    @router.delete("/v1/audio/voices/{name}", response_model=None)
    async def delete(name: str) -> Response:
        """Refuse to delete a voice: all are the model's own."""
        if name.lower() in (server.capabilities.voices or ()):
            raise RequestError(
                f"{name!r} is a voice of the model itself, which cannot be deleted",
                param="name",
                code="unsupported_value",
            )
        raise RequestError(
            f"no voice {name!r}; {own_voices(server)}", param="name", code="voice_not_found", status=404
        )

    return router
