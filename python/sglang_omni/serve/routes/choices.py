"""Several answers to one request. Each is a request of its own in the pipeline; those to one prompt share
its prefill: the first runs alone until its first part, and the others find the prompt in the prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from fastapi import Request

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.generation.results import CompletionResult, to_completion
from sglang_omni.generation.transport import Transport
from sglang_omni.proto import RequestError
from sglang_omni.serve.state import AppState

# Answers of one HTTP request, to all its prompts together.
MAX_CHOICES = 128


class Choices:
    """The answers to one HTTP request, prompt by prompt: the answers to a prompt have successive indices.

    If one fails, the others are aborted and the failure is raised. One that is aborted by its id alone has
    the finish reason "abort" and no effect on others; but those that have not begun yet end with the first.

    Attributes:
        ids: Of the answers in the pipeline.
        per_prompt: The number of answers to each prompt.
        audio_format: Of spoken answers.
    """

    def __init__(
        self,
        transport: Transport,
        ids: Sequence[str],
        prompts: Sequence[GenerateRequest],
        *,
        per_prompt: int = 1,
        audio_format: str = "wav",
    ) -> None:
        """
        Args:
            ids: As many as there are answers.
            prompts: One request for each prompt.
            per_prompt: The number of answers to each. Their seeds are the request's and its successors.
            audio_format: Of spoken answers.
        """
        self.ids = list(ids)
        self.per_prompt = per_prompt
        self._transport = transport
        self.audio_format = audio_format
        requests = [_seeded(prompt, offset) for prompt in prompts for offset in range(per_prompt)]
        self._requests = list(zip(ids, requests, strict=True))

    def __len__(self) -> int:
        return len(self._requests)

    async def complete(self) -> list[CompletionResult]:
        """The whole answers. The log-probabilities of a prompt are those of its first answer."""
        begun = self._begun()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._whole(index, begun)) for index in range(len(self))]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        results = [task.result() for task in tasks]
        for index, result in enumerate(results):
            result.prompt_logprobs = results[index - index % self.per_prompt].prompt_logprobs
        return results

    async def stream(self) -> AsyncGenerator[tuple[int, GenerateChunk], None]:
        """Yields each answer's index with what is new of it, as they come."""
        if len(self) == 1:
            async with aclosing(self._parts(0)) as own:
                async for only in own:
                    yield 0, only
            return
        parts: asyncio.Queue[tuple[int, GenerateChunk] | Exception | None] = asyncio.Queue(len(self))
        running = asyncio.create_task(self._stream_all(parts))
        try:
            while (part := await parts.get()) is not None:
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def usage(self, usages: Sequence[UsageInfo | None]) -> UsageInfo | None:
        """The whole request's usage from that of each answer: each prompt counts once."""
        known = [usage for usage in usages if usage is not None]
        if not known:
            return None
        prompts = [
            next(
                (usage for usage in usages[start : start + self.per_prompt] if usage is not None), UsageInfo()
            )
            for start in range(0, len(usages), self.per_prompt)
        ]
        prompt_tokens = sum(usage.prompt_tokens or 0 for usage in prompts)
        completion_tokens = sum(usage.completion_tokens or 0 for usage in known)
        reasoning = [usage.reasoning_tokens for usage in known if usage.reasoning_tokens is not None]
        return UsageInfo(
            prompt_tokens,
            completion_tokens,
            prompt_tokens + completion_tokens,
            sum(usage.cached_tokens or 0 for usage in prompts),
            sum(reasoning) if reasoning else None,
        )

    def _begun(self) -> list[asyncio.Future[bool]]:
        """For each prompt, whether the others of its answers should begin, once that is known."""
        loop = asyncio.get_running_loop()
        return [loop.create_future() for _ in range(0, len(self), self.per_prompt)]

    async def _whole(self, index: int, begun: list[asyncio.Future[bool]]) -> CompletionResult:
        request_id, request = self._requests[index]
        lead = begun[index // self.per_prompt]
        if index % self.per_prompt:
            if not await lead:
                return CompletionResult(request_id, "", finish_reason="abort")
            # Their scores are the first answer's: computed again, the prompt would not be found in the cache.
            request = replace(request, sampling=replace(request.sampling, prompt_logprobs=None))
        elif self.per_prompt > 1:
            request = replace(request, stream=True)
        whole = await self._transport.whole(request, request_id, lambda part: _begin(lead, part))
        return await to_completion(whole, self.audio_format)

    def _parts(self, index: int) -> AsyncGenerator[GenerateChunk, None]:
        request_id, request = self._requests[index]
        return self._transport.parts(replace(request, stream=True), request_id)

    async def _stream_all(self, parts: asyncio.Queue[tuple[int, GenerateChunk] | Exception | None]) -> None:
        begun = self._begun()

        async def run(index: int) -> None:
            lead = begun[index // self.per_prompt]
            if index % self.per_prompt and not await lead:
                await parts.put((index, GenerateChunk(self.ids[index], finish_reason="abort")))
                return
            async with aclosing(self._parts(index)) as own:
                async for part in own:
                    _begin(lead, part)
                    await parts.put((index, part))

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self)):
                    group.create_task(run(index))
        except ExceptionGroup as failures:
            await parts.put(failures.exceptions[0])
        else:
            await parts.put(None)


async def choices_of(
    server: AppState,
    request: Request,
    prompts: Sequence[GenerateRequest],
    *,
    per_prompt: int = 1,
    audio_format: str = "wav",
    param: str = "n",
    names: Sequence[str] | None = None,
) -> Choices:
    """The answers to an admitted request, each of which takes a place of the server.

    Args:
        request: Its id is registered by ``request_id_of``. A single answer has that id, several are numbered.
        prompts, per_prompt, audio_format: As for ``Choices``.
        param: The field that says how many, for error messages.
        names: The caller's ids of the prompts.

    Raises:
        RequestError: There are more than ``MAX_CHOICES``, or a name is that of a running request.
    """
    count = per_prompt * len(prompts)
    if count > MAX_CHOICES:
        raise RequestError(
            f"{param}: {per_prompt} answers to each of {len(prompts)} prompts are {count}; one request may "
            f"have {MAX_CHOICES}: send several requests",
            param=param,
            code="invalid_value",
        )
    if count > 1:
        request.state.admitted.widen(count)
    name = request.state.request_name
    if names is None:
        ids = await server.running.split(name, count)
    else:
        each = range(per_prompt)
        numbered = [f"{own}-{index}" for own in names for index in each] if per_prompt > 1 else list(names)
        ids = await server.running.rename_parts(name, numbered)
    return Choices(server.transport, ids, prompts, per_prompt=per_prompt, audio_format=audio_format)


def _begin(lead: asyncio.Future[bool], part: GenerateChunk) -> None:
    if not lead.done():
        lead.set_result(part.finish_reason != "abort")


def _seeded(request: GenerateRequest, offset: int) -> GenerateRequest:
    """The request for a later answer: its seed is ``offset`` higher, and wraps at the end of 64 bits."""
    seed = request.sampling.seed
    if seed is None or offset == 0:
        return request
    seed = (seed + offset + 2**63) % 2**64 - 2**63
    return replace(request, sampling=replace(request.sampling, seed=seed))
