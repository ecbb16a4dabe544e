"""``/v1/completions``: continues prompts, whole or streamed."""

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
from sglang_omni.serve.api.protocol.completions import CompletionRequest
from sglang_omni.serve.api.protocol.generate import NativeRequest
from sglang_omni.serve.api.sampling import check_stream_options, to_sampling
from sglang_omni.serve.api.session import owner_of, session_key
from sglang_omni.serve.api.state import AppState, request_id_of
from sglang_omni.serve.api.streaming import EventStream, until_disconnect


def completion_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt, or several at once."""
        model = server.check_model(body.model)
        server.check_task("completion")
        server.check_params("completion", prompt_params(body), body.stage_params)
        check_stream_options(body)
        requests = [_request(server, body, prompt, request) for prompt in _prompts(body)]
        request_id = request_id_of(request, body.request_id)
        head = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        if body.stream:
            if len(requests) > 1:
                raise RequestError(
                    "prompt: only one prompt can be streamed at a time",
                    param="prompt",
                    code="unsupported_value",
                )
            include_usage = bool(body.stream_options and body.stream_options.include_usage)
            events = _events(server, requests[0], request_id, head, include_usage=include_usage)
            return EventStream(events, request_id=request_id)
        ids = server.running.split(request.state.request_name, len(requests))
        by_id = dict(zip(ids, requests, strict=True))
        work = _completions(server, by_id, head, timings=body.timings)
        return JSONResponse(await until_disconnect(request.receive, work))

    return router


async def _completions(
    server: AppState, requests: dict[str, GenerateRequest], head: dict[str, Any], *, timings: bool
) -> dict[str, Any]:
    """The body of an answer.

    Args:
        requests: One for each prompt, by id.
        head: The fields that every answer begins with.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(server.client.completion(request, request_id=request_id))
                for request_id, request in requests.items()
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
    if timings and len(results) == 1:
        fields["timings"] = results[0].timings
    elif timings:
        for choice, result in zip(choices, results, strict=True):
            choice["timings"] = result.timings
    return fields


async def _events(
    server: AppState,
    request: GenerateRequest,
    request_id: str,
    head: dict[str, Any],
    *,
    include_usage: bool,
) -> AsyncGenerator[dict[str, Any], None]:
    if include_usage:
        head = head | {"usage": None}
    started: float | None = time.monotonic()
    chunks = server.client.completion_stream(request, request_id=request_id)
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
            more = {"timings": chunk.timings} if request.timings and chunk.finish_reason is not None else {}
            yield head | {"choices": [choice]} | more
    if include_usage:
        yield head | {"choices": [], "usage": usage.to_dict() if usage else None}


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = body.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return prompt


def prompt_params(body: CompletionRequest | NativeRequest) -> dict[str, Any]:
    """Parameters for how the prompt is read; none for the pipeline's default."""
    return {"parse_special_tokens": True} if body.parse_special_tokens else {}


def _request(
    server: AppState, body: CompletionRequest, prompt: str | list[int], request: Request
) -> GenerateRequest:
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
        session_id=session_key(request, body),
        owner=owner_of(request),
        timings=body.timings,
    )


def _total_usage(results: list[CompletionResult]) -> dict[str, Any] | None:
    usages = [result.usage for result in results if result.usage is not None]
    if not usages:
        return None
    names = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
    return UsageInfo(**{name: sum(getattr(u, name) or 0 for u in usages) for name in names}).to_dict()
