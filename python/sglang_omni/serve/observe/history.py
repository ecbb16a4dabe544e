"""The latest requests: what was answered when. Metrics of answers and the traces of requests come from it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import UsageInfo
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.serve.front.request_ids import RequestName, RunningRequests, bare_id
from sglang_omni.serve.metrics import Metrics

# The latest requests that are remembered; the coordinator remembers as many.
MOST_REMEMBERED = 1024


@dataclass(slots=True, eq=False)
class Generation:
    """One request in the pipeline, as its caller saw it. Times are ``time.monotonic``.

    Attributes:
        request_id: Its id in the pipeline.
        name: The names of the HTTP request that it is part of; None if it came another way.
        request: Its parameters. What is large in it, its input, is not kept.
        arrived: When the HTTP request came, or else this one.
        began: When it was handed to the pipeline.
        first_token: When the first text came, if the answer was streamed.
        ended: When it was over; None while it runs.
        finish_reason: ``error`` if it failed, ``abort`` if its caller left.
    """

    request_id: str
    owner: str | None
    task: str
    model: str | None
    parameters: dict[str, float | None]
    name: RequestName | None
    arrived: float
    began: float
    first_token: float | None = None
    ended: float | None = None
    finish_reason: str | None = None
    usage: UsageInfo | None = None


class History:
    """Remembers the latest requests, and counts them in the metrics. It observes the server's transport."""

    def __init__(self, metrics: Metrics, running: RunningRequests) -> None:
        self._metrics = metrics
        self._running = running
        self._generations: OrderedDict[tuple[str | None, str], Generation] = OrderedDict()

    def begin(self, request: GenerateRequest, request_id: str) -> Watch | None:
        if request.metadata.get("probe"):
            return None
        now = time.monotonic()
        name = self._running.name_of(request_id, request.owner)
        sampling = request.sampling
        generation = Generation(
            request_id=request_id,
            owner=request.owner,
            task=request.task,
            model=request.model,
            parameters={
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": request.max_tokens or sampling.max_new_tokens,
            },
            name=name,
            arrived=now if name is None else name.arrived,
            began=now,
        )
        self.remember(generation)
        return Watch(generation, self._metrics)

    def remember(self, generation: Generation) -> None:
        key = (generation.owner, generation.request_id)
        self._generations[key] = generation
        self._generations.move_to_end(key)
        if len(self._generations) > MOST_REMEMBERED:
            self._generations.popitem(last=False)

    def since(self, moment: float) -> list[Generation]:
        """Those that were not over at a moment of ``time.monotonic``."""
        return [each for each in self._generations.values() if each.ended is None or each.ended >= moment]

    def of_parts(self, parts: Iterable[str], owner: str | None) -> list[Generation]:
        """Those with these ids in the pipeline."""
        return [found for part in parts if (found := self._generations.get((owner, part))) is not None]

    def meant_by(self, text: str, owner: str | None) -> list[Generation]:
        """The owner's requests of a name: their id, the id of their answer, or the one in their header."""
        names = {text, bare_id(text)}
        return [
            each
            for each in self._generations.values()
            if each.owner == owner
            and (
                each.request_id in names
                or (each.name and not names.isdisjoint((each.name.id, each.name.called)))
            )
        ]


class Watch:
    """Follows one request."""

    def __init__(self, generation: Generation, metrics: Metrics) -> None:
        self.generation = generation
        self._metrics = metrics
        self._last = 0.0

    def part(self, part: GenerateChunk) -> None:
        generation = self.generation
        if part.finish_reason is not None:
            generation.finish_reason = part.finish_reason
            generation.usage = part.usage
        elif part.text or part.token_ids or part.reasoning or part.tool_calls:
            now = time.monotonic()
            if generation.first_token is None:
                generation.first_token = now
                self._metrics.first_token(now - generation.arrived)
            else:
                self._metrics.next_token((now - self._last) / (len(part.token_ids) or 1))
            self._last = now

    def end(self, error: BaseException | None) -> None:
        generation = self.generation
        generation.ended = time.monotonic()
        if generation.finish_reason is None:
            left = isinstance(error, GeneratorExit | asyncio.CancelledError)
            generation.finish_reason = "abort" if left else "error"
        seconds = generation.ended - generation.arrived
        self._metrics.generation_done(generation.finish_reason, seconds, generation.usage)
