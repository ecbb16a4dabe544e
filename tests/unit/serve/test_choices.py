"""Several answers to one request: when each begins, what ends them, and what they count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from waiting import until

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.local import LocalTransport
from sglang_omni.generation.request import GenerateRequest, SamplingParams
from sglang_omni.proto import CompleteMessage, OmniRequest, RequestError, StreamMessage
from sglang_omni.serve.routes.choices import Choices


class Steps:
    """A coordinator whose requests each write a word whenever they are told to."""

    def __init__(self) -> None:
        self.begun: dict[str, OmniRequest] = {}
        self.ended: list[str] = []
        self.words: dict[str, asyncio.Queue[str | BaseException]] = {}

    def say(self, request_id: str, *words: str | BaseException) -> None:
        """Has a request write words; the empty word ends it."""
        for word in words:
            self.words.setdefault(request_id, asyncio.Queue()).put_nowait(word)

    async def submit(self, request_id: str, request: OmniRequest) -> Any:
        async for message in self.stream(request_id, request):
            last = message
        return last.result

    async def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[Any]:
        self.begun[request_id] = request
        text = ""
        try:
            while word := await self.words.setdefault(request_id, asyncio.Queue()).get():
                if isinstance(word, BaseException):
                    raise word
                text += word
                yield StreamMessage(request_id, "thinker", {"text": word})
            usage = {"prompt_tokens": 10, "completion_tokens": len(text), "cached_tokens": 8}
            result = {"text": text, "finish_reason": "stop", "usage": usage}
            yield CompleteMessage(request_id, "thinker", True, result)
        finally:
            self.ended.append(request_id)


@pytest.fixture
def steps() -> Steps:
    return Steps()


def choices(steps: Steps, per_prompt: int, *prompts: GenerateRequest) -> Choices:
    prompts = prompts or (GenerateRequest(prompt="Hi", stream=False),)
    ids = [f"r-{index}" for index in range(per_prompt * len(prompts))]
    return Choices(LocalTransport(steps), ids, prompts, per_prompt=per_prompt)


async def streamed(answers: Choices) -> list[tuple[int, GenerateChunk]]:
    return [part async for part in answers.stream()]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_to_a_prompt_runs_alone_until_its_first_part(steps: Steps, stream: bool) -> None:
    prompts = [GenerateRequest(prompt=text, stream=stream) for text in ("one", "two")]
    answers = choices(steps, 2, *prompts)
    task = asyncio.ensure_future(streamed(answers) if stream else answers.complete())
    await until(lambda: set(steps.begun) == {"r-0", "r-2"})
    steps.say("r-2", "c")
    await until(lambda: len(steps.begun) == 3)
    assert list(steps.begun) == ["r-0", "r-2", "r-3"]
    steps.say("r-0", "a", "")
    for request_id, word in (("r-1", "b"), ("r-3", "d")):
        steps.say(request_id, word, "")
    steps.say("r-2", "")
    reported = await task
    if stream:
        texts = ["".join(chunk.text for at, chunk in reported if at == index) for index in range(4)]
        assert sorted(at for at, chunk in reported if chunk.finish_reason) == [0, 1, 2, 3]
    else:
        texts = [result.text for result in reported]
    assert texts == ["a", "b", "c", "d"]


async def test_an_answer_without_parts_lets_the_others_begin_as_it_ends(steps: Steps) -> None:
    for index in range(3):
        steps.say(f"r-{index}", "")
    assert [result.text for result in await choices(steps, 3).complete()] == ["", "", ""]


async def test_seeds_follow_one_another(steps: Steps) -> None:
    request = GenerateRequest(prompt="Hi", sampling=SamplingParams(seed=2**63 - 1), stream=False)
    for index in range(3):
        steps.say(f"r-{index}", "a", "")
    await choices(steps, 3, request).complete()
    seeds = [steps.begun[f"r-{index}"].params["seed"] for index in range(3)]
    assert seeds == [2**63 - 1, -(2**63), -(2**63) + 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failure_fails_the_request_and_ends_the_others(steps: Steps, stream: bool) -> None:
    answers = choices(steps, 3)
    steps.say("r-0", "a")
    steps.say("r-2", RequestError("no", param="prompt"))
    with pytest.raises(RequestError, match="no"):
        await (streamed(answers) if stream else answers.complete())
    assert sorted(steps.ended) == ["r-0", "r-1", "r-2"]


async def test_those_that_have_not_begun_never_begin_after_a_failure(steps: Steps) -> None:
    steps.say("r-0", RuntimeError("no"))
    with pytest.raises(RuntimeError, match="no"):
        await choices(steps, 3).complete()
    assert list(steps.begun) == ["r-0"]


async def test_leaving_the_stream_ends_all(steps: Steps) -> None:
    stream = choices(steps, 3).stream()
    steps.say("r-0", "a")
    assert (await anext(stream))[0] == 0
    await until(lambda: len(steps.begun) == 3)
    await stream.aclose()
    assert sorted(steps.ended) == ["r-0", "r-1", "r-2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_before_the_first_part_ends_all(steps: Steps, stream: bool) -> None:
    answers = choices(steps, 3)
    steps.say("r-0", asyncio.CancelledError())
    if stream:
        reasons = [chunk.finish_reason for _, chunk in await streamed(answers)]
    else:
        reasons = [result.finish_reason for result in await answers.complete()]
    assert reasons == ["abort"] * 3
    assert list(steps.begun) == ["r-0"]


async def test_a_prompt_counts_once(steps: Steps) -> None:
    answers = choices(steps, 2, *[GenerateRequest(prompt="Hi", stream=False)] * 2)
    for index in range(4):
        steps.say(f"r-{index}", "a" * (index + 1), "")
    results = await answers.complete()
    assert answers.usage([result.usage for result in results]) == UsageInfo(20, 10, 30, 16)
    assert answers.usage([None] * 4) is None


async def test_an_answer_in_one_part_still_begins_the_others() -> None:
    """As over HTTP, behind which another server answers whole."""
    begun: list[str] = []

    class Whole(LocalTransport):
        async def parts(
            self, request: GenerateRequest, request_id: str | None = None
        ) -> AsyncGenerator[GenerateChunk, None]:
            assert request_id is not None
            begun.append(request_id)
            yield GenerateChunk(request_id, f"by {request_id}", finish_reason="stop")

    requests = [GenerateRequest(prompt="Hi", stream=False)]
    answers = Choices(Whole(Steps()), ["a", "b", "c"], requests, per_prompt=3)
    results = await asyncio.wait_for(answers.complete(), 60)
    assert [result.text for result in results] == ["by a", "by b", "by c"]
    assert begun[0] == "a"
