"""``/v1/responses``: OpenAI's newer form of a chat, whose responses may be kept and continued."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.request import GenerateRequest, SamplingParams
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.errors import describe
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.streaming import StreamedResponse, event, until_disconnect
from sglang_omni.serve.models.responses import (
    NamedFunction,
    ObjectFormat,
    ResponsesRequest,
    SchemaFormat,
)
from sglang_omni.serve.responses_store import KeptResponse
from sglang_omni.serve.routes.constraints import ANY_OBJECT, guiding_params, renamed_params
from sglang_omni.serve.routes.documented import EVENTS, media
from sglang_omni.serve.routes.reasoning import usable_effort
from sglang_omni.serve.routes.responses_input import check_media, conversation, input_items
from sglang_omni.serve.routes.responses_output import Event, OutputWriter
from sglang_omni.serve.routes.sampling import to_sampling
from sglang_omni.serve.state import AppState, request_id_of

# The request's fields by the names that stages know.
_PARAM_NAMES = {"json_schema": "text.format", "logprobs": "top_logprobs", "messages": "input"}
_PARAM_NAMES |= {"max_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort"}


@dataclass
class _Reply:
    """A response that is being written.

    Attributes:
        kept: The response, whose ``fields`` are the answer's.
    """

    server: AppState
    body: ResponsesRequest
    request_id: str
    kept: KeptResponse
    writer: OutputWriter

    @property
    def fields(self) -> dict[str, Any]:
        return self.kept.fields

    def end(self, last: GenerateChunk) -> list[Event]:
        """The events of the answer's end; the response is complete then, and kept."""
        cut = last.finish_reason in ("length", "abort")
        events = self.writer.finish("incomplete" if cut else "completed")
        status = {"length": "incomplete", "abort": "cancelled"}.get(last.finish_reason or "", "completed")
        self.fields.update(
            status=status, output=self.writer.items, usage=_usage(last.usage), completed_at=int(time.time())
        )
        if status == "incomplete":
            self.fields["incomplete_details"] = {"reason": "max_output_tokens"}
        self.server.metrics.finished(last.usage)
        if self.body.timings:
            self.fields["timings"] = last.timings
        if self.body.store and self.server.responses.fits(self.kept):
            self.server.responses.keep(self.kept)
        else:
            self.fields["store"] = False
        kind = "completed" if status == "completed" else "incomplete"
        return [*events, {"type": f"response.{kind}", "response": self.fields}]


def response_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    running: dict[str, _Reply] = {}

    @router.post("/v1/responses", response_model=None, responses=media(EVENTS))
    async def create(body: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation, which may continue a kept response."""
        model = server.check_model(body.model)
        owner = owner_of(request)
        previous = None
        if body.previous_response_id is not None:
            previous = server.responses.need(body.previous_response_id, owner, "previous_response_id")
        items = input_items(body)
        if body.reasoning is not None:
            body.reasoning.effort = await usable_effort(
                server, body.reasoning.effort, with_tools=bool(body.tools), param="reasoning.effort"
            )
        generate = _request(server, body, previous, items, request)
        request_id = await request_id_of(request, body.request_id)
        response_id = server.responses.new_id()
        kept = KeptResponse(owner, _head(response_id, body, model), items, previous)
        reply = _Reply(server, body, request_id, kept, OutputWriter())

        async def written() -> dict[str, Any]:
            running[response_id] = reply
            try:
                with renamed_params(_PARAM_NAMES):
                    whole = await server.transport.whole(generate, request_id)
            finally:
                del running[response_id]
            reply.writer.add(whole)
            reply.end(whole)
            return reply.fields

        async def streamed() -> AsyncGenerator[bytes, None]:
            running[response_id] = reply
            try:
                async with aclosing(_events(reply, generate)) as events:
                    number = 0
                    async for fields in events:
                        # An item of the answer may still grow, so each event is written at once.
                        numbered = fields | {"sequence_number": number}
                        yield b"event: " + fields["type"].encode() + b"\n" + event(numbered)
                        number += 1
            finally:
                del running[response_id]

        if body.stream:
            return StreamedResponse(streamed(), media_type=EVENTS, request_id=request_id)
        return JSONResponse(await until_disconnect(request.receive, written()))

    @router.get("/v1/responses/{response_id}")
    async def retrieve(
        response_id: str, request: Request, stream: bool = False, starting_after: int | None = None
    ) -> JSONResponse:
        """A kept response of the caller, or one that is being written."""
        if stream or starting_after is not None:
            name = "stream" if stream else "starting_after"
            raise RequestError(
                f"{name}: a response's events are not kept; ask for the response as a whole",
                param=name,
                code="unsupported_value",
            )
        return JSONResponse(_known(response_id, request).fields)

    @router.delete("/v1/responses/{response_id}")
    async def delete(response_id: str, request: Request) -> JSONResponse:
        """Forget a kept response."""
        server.responses.delete(server.responses.need(response_id, owner_of(request)))
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @router.post("/v1/responses/{response_id}/cancel")
    async def cancel(response_id: str, request: Request) -> JSONResponse:
        """Stop a response that is being written; its own caller gets what there is."""
        kept = _known(response_id, request)
        reply = running.get(response_id)
        if reply is None:
            raise RequestError(
                f"response {response_id!r} is {kept.fields['status']}: there is nothing to cancel",
                code="invalid_value",
            )
        await server.transport.abort(reply.request_id, owner=owner_of(request))
        return JSONResponse(kept.fields | {"status": "cancelled"})

    @router.get("/v1/responses/{response_id}/input_items")
    async def list_input(
        response_id: str,
        request: Request,
        after: str | None = None,
        limit: int = Query(20, ge=1, le=100),
        order: Literal["asc", "desc"] = "desc",
    ) -> JSONResponse:
        """The items that a response was made from, those of the responses before it included."""
        items = _known(response_id, request).input()
        if order == "desc":
            items = items[::-1]
        ids = [item["id"] for item in items]
        if after is not None:
            if after not in ids:
                raise RequestError(
                    f"after: the response has no item {after[:128]!r}", param="after", code="invalid_value"
                )
            items = items[ids.index(after) + 1 :]
        page = items[:limit]
        return JSONResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > limit,
            }
        )

    def _known(response_id: str, request: Request) -> KeptResponse:
        reply = running.get(response_id)
        if reply is not None and reply.kept.owner == owner_of(request):
            return reply.kept
        return server.responses.need(response_id, owner_of(request))

    return router


async def _events(reply: _Reply, request: GenerateRequest) -> AsyncGenerator[Event, None]:
    """The events of a response. A failure before the first is raised; a later one is the last event."""
    started = time.monotonic()
    begun = False
    try:
        with renamed_params(_PARAM_NAMES):
            async with aclosing(reply.server.transport.parts(request, reply.request_id)) as parts:
                async for part in parts:
                    if not begun:
                        begun = True
                        reply.server.metrics.first_output(time.monotonic() - started)
                        for kind in ("created", "in_progress"):
                            yield {"type": f"response.{kind}", "response": reply.fields}
                    for fields in reply.writer.add(part):
                        yield fields
                    if part.finish_reason is not None:
                        for fields in reply.end(part):
                            yield fields
    except Exception as exc:
        if not begun:
            raise
        _, body = describe(exc, request_id=reply.request_id)
        error = {"code": "server_error", "message": body["error"]["message"]}
        reply.fields.update(status="failed", error=error, output=reply.writer.items, store=False)
        yield {"type": "response.failed", "response": reply.fields}


def _request(
    server: AppState,
    body: ResponsesRequest,
    previous: KeptResponse | None,
    items: list[dict[str, Any]],
    request: Request,
) -> GenerateRequest:
    server.check_task("chat")
    check_media(server, body)
    tools, choice = _tools(body)
    extra: dict[str, Any] = {}
    if body.chat_template_kwargs:
        extra["chat_template_kwargs"] = body.chat_template_kwargs
    effort = body.reasoning.effort if body.reasoning else None
    if effort is not None:
        extra["reasoning_effort"] = effort
    sampling = _sampling(body)
    params = {**extra, **guiding_params(sampling)}
    if tools:
        params |= {"tools": tools, "tool_choice": choice}
    with renamed_params(_PARAM_NAMES):
        server.check_params("chat", params, body.stage_params)
    earlier = () if previous is None else previous.context()
    return GenerateRequest(
        model=body.model,
        messages=conversation(body.instructions, earlier, items),
        sampling=sampling,
        stage_params=body.stage_params,
        extra_params=extra,
        stream=body.stream,
        max_tokens=body.max_output_tokens,
        metadata={"task": "chat"},
        timeout=server.timeout(body.timeout),
        session_id=session_key(request, body),
        owner=owner_of(request),
        timings=body.timings,
        tools=tools or None,
        tool_choice=choice if tools else None,
        parallel_tool_calls=body.parallel_tool_calls,
    )


def _sampling(body: ResponsesRequest) -> SamplingParams:
    logprobs = body.top_logprobs
    if logprobs is None and "message.output_text.logprobs" in (body.include or ()):
        logprobs = 0
    sampling = replace(to_sampling(body), logprobs=logprobs)
    match body.text.format:
        case ObjectFormat():
            sampling.json_schema = ANY_OBJECT
        case SchemaFormat(schema_=schema):
            sampling.json_schema = json.dumps(schema, ensure_ascii=False)
    return sampling


def _tools(body: ResponsesRequest) -> tuple[list[dict[str, Any]], str | dict[str, Any]]:
    """The tools and the choice among them, in the chat's form.

    Raises:
        RequestError: The choice needs a tool that is not there.
    """
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in body.tools or ()
    ]
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        if choice.name not in [tool["function"]["name"] for tool in tools]:
            raise RequestError(
                f"tool_choice: there is no tool {choice.name!r}", param="tool_choice", code="invalid_value"
            )
        return tools, {"type": "function", "function": {"name": choice.name}}
    if choice == "required" and not tools:
        raise RequestError("tool_choice: needs tools", param="tool_choice", code="invalid_value")
    return tools, choice


def _head(response_id: str, body: ResponsesRequest, model: str) -> dict[str, Any]:
    """The response as it begins."""
    text: dict[str, Any] = {"format": {"type": "text"}}
    if body.text.format is not None:
        text["format"] = body.text.format.model_dump(by_alias=True, exclude_none=True)
    choice = body.tool_choice
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": text,
        "tool_choice": choice.model_dump() if isinstance(choice, NamedFunction) else choice,
        "tools": [{"parameters": None, "strict": None, **tool} for tool in tools],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _usage(usage: UsageInfo | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens or 0,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens or 0,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.total_tokens or 0,
    }
