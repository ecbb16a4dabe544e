"""Several answers to one request. Each is a request of its own in the pipeline; those to one prompt share
its prefill: the first runs alone until its first part, and the others find the prompt in the prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from fastapi import Request

from sglang_omni.client import (
    Client,
    CompletionResult,
    CompletionStreamChunk,
    GenerateChunk,
    GenerateRequest,
    RequestError,
    UsageInfo,
)
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
    """

    def __init__(
        self,
        client: Client,
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
        self._client = client
        self._audio_format = audio_format
        requests = [_seeded(prompt, offset) for prompt in prompts for offset in range(per_prompt)]
        self._requests = list(zip(ids, requests, strict=True))

    def __len__(self) -> int:
        return len(self._requests)

    async def complete(self) -> list[CompletionResult]:
        """The whole answers. The log-probabilities of a prompt are those that its first answer told."""
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

    async def stream(self) -> AsyncGenerator[tuple[int, CompletionStreamChunk], None]:
        """Yields each answer's index with what is new of it, as they come."""
        if len(self) == 1:
            async with aclosing(self._chunks(0)) as chunks:
                async for chunk in chunks:
                    yield 0, chunk
            return
        parts: asyncio.Queue[tuple[int, CompletionStreamChunk] | Exception | None] = asyncio.Queue(len(self))
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
        on_chunk = None
        if index % self.per_prompt:
            if not await lead:
                return CompletionResult(request_id, "", finish_reason="abort")
            # To be told again, they would be computed again, and the prompt not be found in the cache.
            request = replace(request, sampling=replace(request.sampling, prompt_logprobs=None))
        elif self.per_prompt > 1:
            request = replace(request, stream=True)

            def on_chunk(chunk: GenerateChunk) -> None:
                _begin(lead, chunk)

        result = await self._client.completion(
            request, request_id=request_id, audio_format=self._audio_format, on_chunk=on_chunk
        )
        if not lead.done():  # A client over HTTP has no chunks.
            lead.set_result(result.finish_reason != "abort")
        return result

    def _chunks(self, index: int) -> AsyncGenerator[CompletionStreamChunk, None]:
        request_id, request = self._requests[index]
        return self._client.completion_stream(request, request_id=request_id, audio_format=self._audio_format)

    async def _stream_all(
        self, parts: asyncio.Queue[tuple[int, CompletionStreamChunk] | Exception | None]
    ) -> None:
        begun = self._begun()

        async def run(index: int) -> None:
            lead = begun[index // self.per_prompt]
            if index % self.per_prompt and not await lead:
                await parts.put(
                    (index, CompletionStreamChunk(self._requests[index][0], finish_reason="abort"))
                )
                return
            async with aclosing(self._chunks(index)) as chunks:
                async for chunk in chunks:
                    _begin(lead, chunk)
                    await parts.put((index, chunk))

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self)):
                    group.create_task(run(index))
        except ExceptionGroup as failures:
            await parts.put(failures.exceptions[0])
        else:
            await parts.put(None)


def choices_of(
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
        request.state.visit.widen(count)
    name = request.state.request_name
    if names is None:
        ids = server.running.split(name, count)
    else:
        each = range(per_prompt)
        numbered = [f"{own}-{index}" for own in names for index in each] if per_prompt > 1 else list(names)
        ids = server.running.rename_parts(name, numbered)
    return Choices(server.client, ids, prompts, per_prompt=per_prompt, audio_format=audio_format)


def _begin(lead: asyncio.Future[bool], chunk: GenerateChunk | CompletionStreamChunk) -> None:
    if not lead.done():
        lead.set_result(chunk.finish_reason != "abort")


def _seeded(request: GenerateRequest, offset: int) -> GenerateRequest:
    """The request for a later answer: its seed is ``offset`` higher, and wraps at the end of 64 bits."""
    seed = request.sampling.seed
    if seed is None or offset == 0:
        return request
    seed = (seed + offset + 2**63) % 2**64 - 2**63
    return replace(request, sampling=replace(request.sampling, seed=seed))
