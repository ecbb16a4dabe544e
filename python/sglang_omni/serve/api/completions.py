"""``/v1/completions``: prompts continued, whole or streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.client import CompletionResult, GenerateRequest, RequestError, UsageInfo
from sglang_omni.serve.api.bodies import JsonRoute
from sglang_omni.serve.api.chat import check_stream_options, to_sampling
from sglang_omni.serve.api.protocol import CompletionRequest, NativeRequest
from sglang_omni.serve.api.request_ids import RequestName
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.state import Server, request_id_of
from sglang_omni.serve.api.streaming import EventStream, answer


def completion_routes(server: Server) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt, or several at once."""
        model = server.check_model(body.model)
        server.check_task("completion")
        server.check_params("completion", prompt_params(body), body.stage_params)
        check_stream_options(body)
        prompts = _prompts(body)
        request_id = request_id_of(request, body.request_id)
        body.session_id, body.owner = session_key(request, body), owner_of(request)
        head = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        if body.stream:
            if len(prompts) > 1:
                raise RequestError(
                    "prompt: only one prompt can be streamed at a time",
                    param="prompt",
                    code="unsupported_value",
                )
            events = _events(server, body, prompts[0], request_id, head)
            return EventStream(events, request_id=request_id)
        fields = await answer(request, _completions(server, body, prompts, request.state.request_name, head))
        return JSONResponse(fields)

    return router


async def _completions(
    server: Server,
    body: CompletionRequest,
    prompts: list[str | list[int]],
    name: RequestName,
    head: dict[str, Any],
) -> dict[str, Any]:
    ids = server.running.split(name, len(prompts))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(server.client.completion(_request(server, body, prompt), request_id=each))
                for each, prompt in zip(ids, prompts, strict=True)
            ]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    results = [task.result() for task in tasks]
    for result in results:
        server.metrics.finished(result.usage)
    choices: list[dict[str, Any]] = [
        {"index": i, "text": r.text, "logprobs": None, "finish_reason": r.finish_reason}
        for i, r in enumerate(results)
    ]
    fields = head | {"choices": choices, "usage": _total_usage(results)}
    if body.timings and len(results) == 1:
        fields["timings"] = results[0].timings
    elif body.timings:
        for choice, result in zip(choices, results, strict=True):
            choice["timings"] = result.timings
    return fields


async def _events(
    server: Server,
    body: CompletionRequest,
    prompt: str | list[int],
    request_id: str,
    head: dict[str, Any],
) -> AsyncGenerator[dict[str, Any], None]:
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    if include_usage:
        head = head | {"usage": None}
    started: float | None = time.monotonic()
    chunks = server.client.completion_stream(_request(server, body, prompt), request_id=request_id)
    usage: UsageInfo | None = None
    async with aclosing(chunks):
        async for chunk in chunks:
            if started is not None:
                server.metrics.first_output(time.monotonic() - started)
                started = None
            if not chunk.text and chunk.finish_reason is None:
                continue
            if chunk.finish_reason is not None:
                usage = chunk.usage
                server.metrics.finished(usage)
            choice = {
                "index": 0,
                "text": chunk.text,
                "logprobs": None,
                "finish_reason": chunk.finish_reason,
            }
            more = {"timings": chunk.timings} if body.timings and chunk.finish_reason is not None else {}
            yield head | {"choices": [choice]} | more
    if include_usage:
        yield head | {"choices": [], "usage": usage.to_dict() if usage else None}


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = body.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return prompt


def prompt_params(body: CompletionRequest | NativeRequest) -> dict[str, Any]:
    """What is said of how the prompt is read: nothing, if it is read as pipelines do by default."""
    return {"parse_special_tokens": True} if body.parse_special_tokens else {}


def _request(server: Server, body: CompletionRequest, prompt: str | list[int]) -> GenerateRequest:
    return GenerateRequest(
        model=body.model,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=None if isinstance(prompt, str) else prompt,
        sampling=to_sampling(body),
        stage_params=body.stage_params,
        stream=body.stream,
        max_tokens=body.max_tokens,
        extra_params=prompt_params(body),
        metadata={"task": "completion"},
        timeout=server.timeout(body.timeout),
        session_id=body.session_id,
        owner=body.owner,
        timings=body.timings,
    )


def _total_usage(results: list[CompletionResult]) -> dict[str, Any] | None:
    usages = [result.usage for result in results if result.usage is not None]
    if not usages:
        return None
    names = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
    return UsageInfo(**{name: sum(getattr(u, name) or 0 for u in usages) for name in names}).to_dict()
