"""``/v1/chat/completions``: answers a conversation with text, speech and calls, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.results import PartEncoder
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.streaming import EventStream, EventTemplate, until_disconnect
from sglang_omni.serve.models.chat import ChatCompletionRequest
from sglang_omni.serve.observe.playback_metrics import listening
from sglang_omni.serve.routes.chat_answer import Answers, part_of
from sglang_omni.serve.routes.chat_request import audio_format_of, param_names_of, to_generate_request
from sglang_omni.serve.routes.choices import Choices, choices_of
from sglang_omni.serve.routes.constraints import renamed_params
from sglang_omni.serve.routes.documented import EVENTS, media
from sglang_omni.serve.routes.reasoning import usable_effort
from sglang_omni.serve.state import AppState, request_id_of
from sglang_omni.serve.word_times import WordTimes, check_granularities


@dataclass(frozen=True)
class _Reply:
    """One request's answers.

    Attributes:
        head: The fields that the body and every event begin with.
        param_names: The request's fields by the names that stages know.
    """

    head: dict[str, Any]
    choices: Choices
    answers: Answers
    include_usage: bool
    timings: bool
    param_names: Mapping[str, str]

    def event(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        usage = {"usage": None} if self.include_usage else {}
        return {**self.head, "object": "chat.completion.chunk", "choices": choices, **usage, **more}

    def plain_event(self, index: int) -> EventTemplate:
        """The events of an answer that bring nothing but a delta and its log-probabilities."""
        return EventTemplate(self.event([part_of(index, EventTemplate.HOLE, EventTemplate.HOLE)]))


def chat_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=None, responses=media(EVENTS))
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = server.check_model(body.model)
        if body.reasoning_effort is not None:
            body.reasoning_effort = await usable_effort(
                server,
                body.reasoning_effort,
                with_tools=bool(body.tools or body.functions),
                param="reasoning_effort",
            )
        generate, times = to_generate_request(server, body, owner_of(request)), _times(server, body)
        generate.session_id = session_key(request, body)
        audio_format = audio_format_of(body)
        request_id = await request_id_of(request, body.request_id)
        created = int(time.time())
        reply = _Reply(
            head={"id": f"chatcmpl-{request_id}", "created": created, "model": model},
            choices=await choices_of(
                server, request, [generate], per_prompt=body.n, audio_format=audio_format
            ),
            answers=Answers(
                created,
                tuple(body.modalities or ("text",)),
                return_token_ids=body.return_token_ids,
                legacy=body.functions is not None,
                logprobs=bool(body.logprobs),
                times=times,
            ),
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            timings=body.timings,
            param_names=param_names_of(body),
        )
        if body.stream:
            return EventStream(_events(server, reply), request_id=request_id)
        return JSONResponse(await until_disconnect(request.receive, _completion(server, reply)))

    return router


def _times(server: AppState, body: ChatCompletionRequest) -> list[WordTimes]:
    """How the words of each answer are timed; empty if that is not asked for."""
    wanted = None if body.audio is None else body.audio.timestamp_granularities
    if wanted is None:
        return []
    each = [check_granularities(server, wanted, "audio.timestamp_granularities") for _ in range(body.n)]
    return [times for times in each if times is not None]


async def _completion(server: AppState, reply: _Reply) -> dict[str, Any]:
    with renamed_params(reply.param_names):
        results = await reply.choices.complete()
    usage = reply.choices.usage([result.usage for result in results])
    server.metrics.finished(usage)
    choices = [reply.answers.choice(index, result) for index, result in enumerate(results)]
    fields: dict[str, Any] = {
        **reply.head,
        "object": "chat.completion",
        "choices": choices,
        "usage": usage.to_dict() if usage else None,
    }
    if results[0].input_transcript is not None:
        fields["heard"] = results[0].input_transcript
    if reply.timings and len(results) == 1:
        fields["timings"] = results[0].timings
    elif reply.timings:
        for choice, result in zip(choices, results, strict=True):
            choice["timings"] = result.timings
    return fields


async def _events(server: AppState, reply: _Reply) -> AsyncGenerator[dict[str, Any] | bytes, None]:
    started = time.monotonic()
    answers, count = reply.answers, len(reply.choices)
    # Answers of which nothing is sent yet, and those that are not finished.
    silent, running = set(range(count)), set(range(count))
    usages: list[UsageInfo | None] = [None] * count
    encoders = [PartEncoder(reply.choices.audio_format) for _ in range(count)]
    plain = [reply.plain_event(index) for index in range(count)]
    with renamed_params(reply.param_names), listening(server.metrics) as play:
        async with aclosing(reply.choices.stream()) as parts:
            async for index, part in parts:
                if index not in silent and (delta := answers.plain(part)) is not None:
                    yield plain[index].event(*delta)
                    continue
                sound = await answers.sound(encoders[index], part)
                if seconds := part.audio_seconds:
                    play(index, seconds)
                choice = answers.part(index, part, sound, is_first=index in silent)
                if choice is not None:
                    if len(silent) == count:
                        server.metrics.first_output(time.monotonic() - started)
                    silent.discard(index)
                    heard = {"heard": part.input_transcript} if part.input_transcript else {}
                    yield reply.event([choice], **heard)
                if part.finish_reason is not None:
                    running.discard(index)
                    usages[index] = part.usage
                    last = part_of(index, {}, finish_reason=answers.finish_reason(part.finish_reason))
                    yield reply.event([last], **({"timings": part.timings} if reply.timings else {}))
    for index in sorted(running):
        yield reply.event([part_of(index, {}, finish_reason="stop")])
    usage = reply.choices.usage(usages)
    server.metrics.finished(usage)
    if reply.include_usage:
        yield reply.event([], usage=usage.to_dict() if usage else None)
