"""``/generate``: continues texts, in SGLang's native format."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sglang_omni.generation.answer import AnswerBuilder, GenerateChunk
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.generation.results import CompletionResult
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.front.session import owner_of, session_key
from sglang_omni.serve.front.streaming import EventStream, until_disconnect
from sglang_omni.serve.models.generate import GenerateSampling, NativeRequest
from sglang_omni.serve.routes.choices import Choices, choices_of
from sglang_omni.serve.routes.completions import prompt_params
from sglang_omni.serve.routes.constraints import constraint_of, guiding_params
from sglang_omni.serve.routes.documented import EVENTS, media
from sglang_omni.serve.routes.native_logprobs import input_fields, output_fields
from sglang_omni.serve.routes.sampling import to_sampling
from sglang_omni.serve.state import AppState, request_id_of

T = TypeVar("T")


@dataclass(frozen=True)
class _Wanted:
    """One prompt, and what its answer tells.

    Attributes:
        where: Of its sampling parameters, for errors.
        start: The first token of the prompt with a log-probability; -1: none.
        top: How many of the likeliest tokens at each place.
    """

    prompt: str | list[int]
    sampling: GenerateSampling
    where: str
    logprobs: bool
    start: int
    top: int


def _fields(body: NativeRequest, wanted: _Wanted, answer: GenerateChunk | CompletionResult) -> dict[str, Any]:
    """An answer so far; each of SGLang's events has all of it."""
    usage = answer.usage or UsageInfo()
    reason: dict[str, Any] | None = None
    if answer.finish_reason is not None:
        reason = {"type": answer.finish_reason}
        if answer.finish_reason == "length":
            reason["length"] = len(answer.token_ids)
    meta: dict[str, Any] = {
        "id": answer.request_id,
        "finish_reason": reason,
        "prompt_tokens": usage.prompt_tokens or 0,
        "completion_tokens": usage.completion_tokens or len(answer.token_ids),
        "cached_tokens": usage.cached_tokens or 0,
    }
    if wanted.logprobs:
        texts = body.return_text_in_logprobs
        prompt = answer.prompt_logprobs[wanted.start :] if wanted.start >= 0 else []
        meta |= input_fields(prompt, wanted.top, texts=texts)
        meta |= output_fields(answer.logprobs, wanted.top, texts=texts)
    if body.timings and answer.finish_reason is not None:
        meta["timings"] = answer.timings
    return {"text": answer.text, "output_ids": list(answer.token_ids), "meta_info": meta}


def generate_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/generate", response_model=None, responses=media(EVENTS))
    async def generate(body: NativeRequest, request: Request) -> Response:
        """Continue one text, or several, in SGLang's format."""
        server.check_task("completion")
        prompts = _wanted(body)
        n = _same_n(prompts)
        requests = [_request(server, body, each, request) for each in prompts]
        rids = [body.rid] if isinstance(body.rid, str) else body.rid
        if rids is not None and body.request_id not in (None, *rids):
            raise RequestError("rid and request_id differ; give one", param="rid", code="invalid_value")
        whole = isinstance(body.rid, list)
        request_id = await request_id_of(request, None if whole else (rids[0] if rids else body.request_id))
        choices = await choices_of(
            server,
            request,
            requests,
            per_prompt=n,
            param="sampling_params.n",
            names=rids if whole else None,
        )
        wanted = [prompts[index // n] for index in range(len(choices))]
        if body.stream:
            return EventStream(_events(server, body, choices, wanted), request_id=request_id)
        results = await until_disconnect(request.receive, choices.complete())
        server.metrics.finished(choices.usage([result.usage for result in results]))
        fields = [_fields(body, *pair) for pair in zip(wanted, results, strict=True)]
        return JSONResponse(fields if len(fields) > 1 or _is_list(body) else fields[0])

    return router


async def _events(
    server: AppState, body: NativeRequest, choices: Choices, wanted: list[_Wanted]
) -> AsyncGenerator[dict[str, Any], None]:
    """Events as SGLang streams them: each has all of one answer so far; of several, with its index."""
    several = len(wanted) > 1 or _is_list(body)
    answers = [AnswerBuilder() for _ in wanted]
    async with aclosing(choices.stream()) as parts:
        async for index, part in parts:
            answers[index].join(part)
            if part.text or part.finish_reason is not None:
                fields = _fields(body, wanted[index], answers[index].whole())
                yield fields | ({"index": index} if several else {})
    server.metrics.finished(
        choices.usage([None if answer.last is None else answer.last.usage for answer in answers])
    )


def _is_list(body: NativeRequest) -> bool:
    """True if prompts were given as a list, so that the answers are one, even if it has one prompt."""
    return isinstance(body.text, list) or (body.input_ids is not None and isinstance(body.input_ids[0], list))


def _wanted(body: NativeRequest) -> list[_Wanted]:
    """
    Raises:
        RequestError: There are no prompts or two fields of them, or a list has another length than theirs.
    """
    if (body.text is None) == (body.input_ids is None):
        raise RequestError(
            "give exactly one of text and input_ids",
            param="text",
            code="missing_required_parameter" if body.text is None else "invalid_value",
        )
    given: Any = body.input_ids if body.text is None else body.text
    prompts: list[Any] = given if _is_list(body) else [given]
    count = len(prompts)
    if isinstance(body.rid, list):
        rids: list[str] = _each(body.rid, count, "rid")
        if len(set(rids)) < count:
            raise RequestError("rid: two prompts have the same", param="rid", code="invalid_value")
    wheres = [f"sampling_params[{index}]." for index in range(count)]
    return [
        _Wanted(*values)
        for values in zip(
            prompts,
            _each(body.sampling_params, count, "sampling_params"),
            wheres if isinstance(body.sampling_params, list) else ["sampling_params."] * count,
            _each(body.return_logprob, count, "return_logprob"),
            _each(body.logprob_start_len, count, "logprob_start_len"),
            _each(body.top_logprobs_num, count, "top_logprobs_num"),
            strict=True,
        )
    ]


def _each(value: list[T] | T, count: int, param: str) -> list[T]:
    """The value for each prompt."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RequestError(
            f"{param}: has {len(value)} values for {count} prompt{'s' if count > 1 else ''}",
            param=param,
            code="invalid_value",
        )
    return value


def _same_n(prompts: list[_Wanted]) -> int:
    n = prompts[0].sampling.n
    for each in prompts:
        if each.sampling.n != n:
            raise RequestError(
                f"{each.where}n: must be the same for all prompts",
                param=f"{each.where}n",
                code="invalid_value",
            )
    return n


def _request(server: AppState, body: NativeRequest, wanted: _Wanted, request: Request) -> GenerateRequest:
    fields = wanted.sampling
    constraint = constraint_of(fields, wanted.where)
    sampling = replace(to_sampling(fields), logit_bias=fields.logit_bias or {})
    if wanted.logprobs:
        sampling.logprobs = wanted.top
        sampling.prompt_logprobs = wanted.top if wanted.start >= 0 else None
    if constraint is not None:
        sampling = constraint.apply(sampling)
    params = {**prompt_params(body), **guiding_params(sampling)}
    server.check_params("completion", params, body.stage_params)
    prompt = wanted.prompt
    return GenerateRequest(
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=None if isinstance(prompt, str) else prompt,
        sampling=sampling,
        stage_params=body.stage_params,
        stream=body.stream,
        max_tokens=fields.max_new_tokens,
        extra_params=prompt_params(body),
        metadata={"task": "completion"},
        timeout=server.timeout(body.timeout),
        session_id=session_key(request, body),
        owner=owner_of(request),
        timings=body.timings,
    )
