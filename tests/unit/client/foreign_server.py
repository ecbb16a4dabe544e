"""A server of another maker: OpenAI's routes with OpenAI's fields, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Form, Header, HTTPException, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict

from sglang_omni.generation.audio import encode_audio
from sglang_omni.generation.samples import encode_pcm

KEY = "sk-other"
SOUND = np.sin(np.linspace(0, 300, 4800, dtype=np.float32)) / 2
app = FastAPI()


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str


class Audio(BaseModel):
    format: Literal["wav", "mp3", "pcm16"]
    voice: str = "alloy"


class Chat(Strict):
    messages: list[dict[str, Any]]
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    modalities: list[str] = []
    audio: Audio | None = None


class Speech(Strict):
    input: str
    voice: str
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: Literal["audio", "sse"] = "audio"


@app.exception_handler(RequestValidationError)
async def refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    where = ".".join(map(str, exc.errors()[0]["loc"][1:]))
    return JSONResponse({"error": {"message": f"unknown argument: {where}", "param": where}}, 400)


@app.middleware("http")
async def keys(request: Request, call_next: Any) -> Response:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        error = {"message": "Incorrect API key provided", "code": "invalid_api_key"}
        return JSONResponse({"error": error}, 401)
    return await call_next(request)


@app.get("/v1/models")
def models() -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "other-1", "object": "model", "owned_by": "other"}]}


@app.post("/v1/chat/completions", response_model=None)
def chat(body: Chat) -> Any:
    if body.model != "other-1":
        raise HTTPException(404, "no such model")
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    if body.stream:
        return StreamingResponse(_events(body, usage), media_type="text/event-stream")
    message: dict[str, Any] = {"role": "assistant", "content": "Hello you."}
    if body.audio:
        data, _ = encode_audio(SOUND, response_format=body.audio.format)
        message["audio"] = {"id": "a", "data": base64.b64encode(data).decode(), "transcript": "Hello you."}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def _events(body: Chat, usage: dict[str, int]) -> Iterator[str]:
    deltas: list[dict[str, Any]] = [{"role": "assistant"}, {"content": "Hello"}, {"content": " you."}]
    if body.audio:
        deltas.append({"audio": {"data": base64.b64encode(encode_pcm(SOUND)).decode()}})
    choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    for each in choices:
        yield f"data: {json.dumps({'choices': each, 'usage': None})}\n\n"
    yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


@app.post("/v1/audio/speech", response_model=None)
def speech(body: Speech) -> Any:
    if body.response_format == "pcm":
        half = len(SOUND)
        pcm = encode_pcm(SOUND)
        # In the middle of a sample, as bytes on a network come.
        return StreamingResponse(iter([pcm[: half + 1], pcm[half + 1 :]]), media_type="audio/pcm")
    data, mime = encode_audio(SOUND, response_format=body.response_format)
    return Response(data, media_type=mime)


@app.post("/v1/audio/transcriptions", response_model=None)
async def transcriptions(
    request: Request,
    file: UploadFile,
    model: Annotated[str, Form()],
    response_format: Annotated[str, Form()] = "json",
    content_type: Annotated[str, Header()] = "",
) -> Any:
    form = await request.form()
    if unknown := form.keys() - {"file", "model", "response_format", "language", "prompt", "temperature"}:
        error = {"message": f"unknown argument: {', '.join(unknown)}"}
        return JSONResponse({"error": error}, 400)
    if not (file.filename or "").endswith((".wav", ".mp3")):
        return JSONResponse({"error": {"message": "unrecognized file format"}}, 400)
    segment = {"id": 0, "start": 0.0, "end": 0.2, "text": "Hello."}
    return {"text": "Hello.", "language": "english", "duration": 0.2, "segments": [segment]}
