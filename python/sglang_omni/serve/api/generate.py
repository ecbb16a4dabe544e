"""``/generate``: continues a text, in SGLang's native format."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.client import GenerateRequest, RequestError, UsageInfo
from sglang_omni.serve.api.bodies import JsonRoute
from sglang_omni.serve.api.completions import prompt_params
from sglang_omni.serve.api.protocol.generate import NativeRequest
from sglang_omni.serve.api.sampling import to_sampling
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.state import AppState, request_id_of
from sglang_omni.serve.api.streaming import EventStream, until_disconnect


def generate_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/generate", response_model=None)
    async def generate(body: NativeRequest, request: Request) -> Response:
        """Continue a text, in SGLang's format."""
        server.check_task("completion")
        server.check_params("completion", prompt_params(body), body.stage_params)
        if (body.text is None) == (body.input_ids is None):
            raise RequestError(
                "give exactly one of text and input_ids",
                param="text",
                code="missing_required_parameter" if body.text is None else "invalid_value",
            )
        if body.rid is not None and body.request_id not in (None, body.rid):
            raise RequestError("rid and request_id differ; give one", param="rid", code="invalid_value")
        request_id = request_id_of(request, body.rid or body.request_id)
        generation = _request(server, body, request)
        if body.stream:
            return EventStream(_events(server, generation, request_id), request_id=request_id)
        result = await until_disconnect(
            request.receive, server.client.completion(generation, request_id=request_id)
        )
        server.metrics.finished(result.usage)
        fields = _fields(request_id, result.text, result.finish_reason, result.usage)
        fields["output_ids"] = result.token_ids
        if body.timings:
            fields["meta_info"]["timings"] = result.timings
        return JSONResponse(fields)

    return router


async def _events(
    server: AppState, request: GenerateRequest, request_id: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Events as SGLang streams them: each has all the text so far."""
    text = ""
    chunks = server.client.completion_stream(request, request_id=request_id)
    async with aclosing(chunks):
        async for chunk in chunks:
            text += chunk.text
            if chunk.finish_reason is not None:
                server.metrics.finished(chunk.usage)
            if chunk.text or chunk.finish_reason is not None:
                fields = _fields(request_id, text, chunk.finish_reason, chunk.usage)
                if request.timings and chunk.finish_reason is not None:
                    fields["meta_info"]["timings"] = chunk.timings
                yield fields


def _request(server: AppState, body: NativeRequest, request: Request) -> GenerateRequest:
    return GenerateRequest(
        prompt=body.text,
        prompt_token_ids=body.input_ids,
        sampling=to_sampling(body.sampling_params),
        stage_params=body.stage_params,
        stream=body.stream,
        max_tokens=body.sampling_params.max_new_tokens,
        extra_params=prompt_params(body),
        metadata={"task": "completion"},
        timeout=server.timeout(body.timeout),
        session_id=session_key(request, body),
        owner=owner_of(request),
        timings=body.timings,
    )


def _fields(request_id: str, text: str, finish_reason: str | None, usage: UsageInfo | None) -> dict[str, Any]:
    counts = usage or UsageInfo()
    return {
        "text": text,
        "meta_info": {
            "id": request_id,
            "finish_reason": None if finish_reason is None else {"type": finish_reason},
            "prompt_tokens": counts.prompt_tokens or 0,
            "completion_tokens": counts.completion_tokens or 0,
            "cached_tokens": counts.cached_tokens or 0,
        },
    }
