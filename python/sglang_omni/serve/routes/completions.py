"""``/v1/completions``: continues prompts, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.generation.fields import TokenLogprob, UsageInfo
from sglang_omni.generation.request import GenerateRequest, SamplingParams
from sglang_omni.generation.results import CompletionResult
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.streaming import EventStream, EventTemplate, to_json, until_disconnect
from sglang_omni.serve.models.completions import CompletionRequest
from sglang_omni.serve.models.generate import NativeRequest
from sglang_omni.serve.routes.choices import Choices, choices_of
from sglang_omni.serve.routes.constraints import constraint_of, guiding_params, renamed_params
from sglang_omni.serve.routes.documented import EVENTS, media
from sglang_omni.serve.routes.legacy_logprobs import LegacyLogprobs, text_of
from sglang_omni.serve.routes.sampling import check_stream_options, to_sampling
from sglang_omni.serve.state import AppState, request_id_of


@dataclass(frozen=True)
class _Reply:
    """One request's answer.

    Attributes:
        head: The fields that every event and the body begin with.
        echoes: The text of each prompt, if the answers repeat it.
        param_names: The request's fields by the names that stages know.
    """

    body: CompletionRequest
    head: dict[str, Any]
    choices: Choices
    echoes: list[str]
    param_names: Mapping[str, str]

    def echo(self, index: int) -> str:
        """What an answer begins with."""
        return self.echoes[index // self.choices.per_prompt] if self.echoes else ""


def completion_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/completions", response_model=None, responses=media(EVENTS))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt, or several at once."""
        model = server.check_model(body.model)
        server.check_task("completion")
        _check(body)
        sampling, names = _sampling(body)
        with renamed_params(names):
            params = {**prompt_params(body), **guiding_params(sampling)}
            server.check_params("completion", params, body.stage_params)
        prompts = _prompts(body)
        echoes = await _texts(server, prompts) if body.echo else []
        requests = [_request(server, body, sampling, prompt, request) for prompt in prompts]
        request_id = await request_id_of(request, body.request_id)
        param = "n" if body.best_of is None else "best_of"
        choices = await choices_of(server, request, requests, per_prompt=body.best_of or body.n, param=param)
        head = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        reply = _Reply(body, head, choices, echoes, names)
        if body.stream:
            return EventStream(_events(server, reply), request_id=request_id)
        return JSONResponse(await until_disconnect(request.receive, _completion(server, reply)))

    return router


async def _completion(server: AppState, reply: _Reply) -> dict[str, Any]:
    """The body of an answer."""
    body = reply.body
    with renamed_params(reply.param_names):
        results = await reply.choices.complete()
    usage = reply.choices.usage([result.usage for result in results])
    server.metrics.finished(usage)
    kept = _best(results, reply.choices.per_prompt, body.n)
    choices = [_choice(reply, index, result) for index, result in enumerate(kept)]
    if body.max_tokens == 0 and usage is not None:
        usage = UsageInfo(usage.prompt_tokens, 0, usage.prompt_tokens, usage.cached_tokens)
    fields = reply.head | {"choices": choices, "usage": usage.to_dict() if usage else None}
    if body.timings and len(kept) == 1:
        fields["timings"] = kept[0].timings
    elif body.timings:
        for choice, result in zip(choices, kept, strict=True):
            choice["timings"] = result.timings
    return fields


def _choice(reply: _Reply, index: int, result: CompletionResult) -> dict[str, Any]:
    body = reply.body
    echo = reply.echoes[index // body.n] if reply.echoes else ""
    only_prompt = body.max_tokens == 0
    logprobs = None
    if body.logprobs is not None:
        prompt = result.prompt_logprobs if body.echo else []
        writer = LegacyLogprobs(begins_before=len(text_of(prompt)) - len(echo))
        logprobs = writer.write(prompt if only_prompt else [*prompt, *result.logprobs])
    return {
        "index": index,
        "text": echo if only_prompt else echo + result.text,
        "logprobs": logprobs,
        "finish_reason": "length" if only_prompt else result.finish_reason,
    }


async def _events(server: AppState, reply: _Reply) -> AsyncGenerator[dict[str, Any] | bytes, None]:
    body = reply.body
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = reply.head | ({"usage": None} if include_usage else {})
    started: float | None = time.monotonic()
    usages: list[UsageInfo | None] = [None] * len(reply.choices)
    writers = [LegacyLogprobs() for _ in usages] if body.logprobs is not None else []
    echoing = dict.fromkeys(range(len(usages))) if body.echo else {}
    hole = EventTemplate.HOLE
    plain = [EventTemplate(head | {"choices": [_delta(index, hole, hole)]}) for index in range(len(usages))]
    with renamed_params(reply.param_names):
        async with aclosing(reply.choices.stream()) as chunks:
            async for index, chunk in chunks:
                if started is not None:
                    server.metrics.first_output(time.monotonic() - started)
                    started = None
                if index in echoing:
                    del echoing[index]
                    yield head | {"choices": [_delta(index, reply.echo(index))]}
                is_last = chunk.finish_reason is not None
                if is_last:
                    usages[index] = chunk.usage
                if chunk.text or chunk.logprobs or is_last:
                    logprobs = writers[index].write(chunk.logprobs) if writers else None
                    if not is_last:
                        yield plain[index].event(to_json(chunk.text), to_json(logprobs))
                        continue
                    delta = _delta(index, chunk.text, logprobs, chunk.finish_reason)
                    more = {"timings": chunk.timings} if body.timings else {}
                    yield head | {"choices": [delta]} | more
    usage = reply.choices.usage(usages)
    server.metrics.finished(usage)
    if include_usage:
        yield head | {"choices": [], "usage": usage.to_dict() if usage else None}


def _delta(
    index: int, text: str, logprobs: dict[str, Any] | str | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _best(results: list[CompletionResult], per_prompt: int, n: int) -> list[CompletionResult]:
    """The ``n`` likeliest answers to each prompt, the likeliest first if not all are wanted."""
    if n == per_prompt:
        return results
    kept = []
    for start in range(0, len(results), per_prompt):
        ranked = sorted(results[start : start + per_prompt], key=lambda each: -mean_logprob(each.logprobs))
        kept += ranked[:n]
    return kept


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float:
    """Of the tokens of an answer; an answer without tokens is the least likely."""
    known = [token.logprob for token in tokens if token.logprob is not None]
    return sum(known) / len(known) if known else float("-inf")


def _check(body: CompletionRequest) -> None:
    check_stream_options(body)
    if body.best_of is not None and body.best_of < body.n:
        raise RequestError("best_of: must be at least n", param="best_of", code="invalid_value")
    if body.stream and body.best_of not in (None, body.n):
        raise RequestError(
            "best_of: which answers are the best is known only at their end, so they cannot be streamed",
            param="best_of",
            code="unsupported_value",
        )
    if body.max_tokens == 0 and (not body.echo or body.stream):
        raise RequestError(
            "max_tokens: 0 is for the prompt alone, with echo and without stream",
            param="max_tokens",
            code="invalid_value",
        )
    if body.stream and body.echo and body.logprobs is not None:
        raise RequestError(
            "logprobs: those of the prompt are known only at the answer's end, so with echo they cannot be "
            "streamed",
            param="logprobs",
            code="unsupported_value",
        )


def _sampling(body: CompletionRequest) -> tuple[SamplingParams, dict[str, str]]:
    """How tokens are drawn, and the request's fields by the names that stages know."""
    constraint = constraint_of(body)
    logprobs = body.logprobs
    if logprobs is None and body.best_of not in (None, body.n):
        logprobs = 0
    sampling = replace(
        to_sampling(body),
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    if constraint is not None:
        sampling = constraint.apply(sampling)
    names = {constraint.kind: constraint.param} if constraint else {}
    names["prompt_logprobs"] = "logprobs"
    if body.logprobs is None:
        names["logprobs"] = "best_of"
    return sampling, names


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = body.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return prompt


async def _texts(server: AppState, prompts: list[str | list[int]]) -> list[str]:
    """The prompts as text."""
    if all(isinstance(prompt, str) for prompt in prompts):
        return [str(prompt) for prompt in prompts]
    return await server.prompts.run(lambda chats: [_text(chats, prompt) for prompt in prompts])


def _text(chats: ChatPrompts, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else chats.prompts.tokenizer.decode(prompt)


def prompt_params(body: CompletionRequest | NativeRequest) -> dict[str, Any]:
    """Parameters for how the prompt is read; none for the pipeline's default."""
    return {"parse_special_tokens": True} if body.parse_special_tokens else {}


def _request(
    server: AppState,
    body: CompletionRequest,
    sampling: SamplingParams,
    prompt: str | list[int],
    request: Request,
) -> GenerateRequest:
    return GenerateRequest(
        model=body.model,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=None if isinstance(prompt, str) else prompt,
        sampling=sampling,
        stage_params=body.stage_params,
        stream=body.stream,
        # An answer has at least one token, which is left out of that to an echo alone.
        max_tokens=None if body.max_tokens is None else max(1, body.max_tokens),
        extra_params=prompt_params(body),
        metadata={"task": "completion"},
        timeout=server.timeout(body.timeout),
        session_id=session_key(request, body),
        owner=owner_of(request),
        timings=body.timings,
        stream_interval=body.stream_interval,
    )
