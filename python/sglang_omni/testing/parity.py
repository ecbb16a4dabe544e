"""``check``: whether a pipeline says what a reference says, in every way of asking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from sglang_omni.config import PipelineConfig
from sglang_omni.config.factories.overrides import override_stages
from sglang_omni.testing.answers import Answer, Case, Reference, difference, read_answer
from sglang_omni.testing.asking import Asker, Reply, running
from sglang_omni.testing.report import Difference, Report, Row, Timing
from sglang_omni.testing.ways import ALL_WAYS, Way

# Tokens of a page of a KV pool on a CPU.
_PAGE = 16


def check(
    config: PipelineConfig,
    reference: Reference,
    cases: Sequence[Case],
    ways: Sequence[Way] = ALL_WAYS,
    *,
    samples_atol: float = 1e-5,
    at_once: int = 8,
    prefill_tokens: int = 8,
    pool_tokens: int | None = None,
    processes: bool = False,
    timeout_s: float = 300.0,
    read: Callable[[Any], Answer] = read_answer,
) -> Report:
    """Runs a pipeline, asks it all cases in every way, and compares its answers with the reference's.

    They are always asked alone. The pipeline is started again for ``Way.CHUNKED`` and ``Way.RETRACTED``.

    Args:
        config: The pipeline, which is not changed.
        reference: Asked once a case.
        cases: Several, of various lengths.
        ways: Those to ask in.
        samples_atol: How far a sample of sound may be off.
        at_once: How many requests run together, and from a small KV pool twice as many; cases are asked more
            than once if there are fewer.
        prefill_tokens: Tokens of a prompt in one step, for ``Way.CHUNKED``.
        pool_tokens: The size of the KV pool for ``Way.RETRACTED``; None for a little more than the longest
            request takes, as the ``usage`` of its result says.
        processes: True if the stages run in processes of their own, as they are served; else in this one,
            which starts faster.
        timeout_s: Seconds after which a request counts as failed.
        read: Takes what is compared out of a result.

    Raises:
        ValueError: There are no cases.
        Exception: Of the reference, or of a stage's factory.
        RuntimeError: It is called inside a running event loop.
    """
    if not cases:
        raise ValueError("there are no cases to ask")
    began = time.perf_counter()
    right = [reference.answers(case) for case in cases]
    passed = time.perf_counter() - began
    found = _Check(cases, right, samples_atol, at_once, read)
    asyncio.run(found.run(config, ways, prefill_tokens, pool_tokens, timeout_s, processes=processes))
    steps = sum(answer.steps for answer in right if answer)
    return Report(found.rows, found.differences, Timing(passed, len(cases), steps))


class _Check:
    def __init__(
        self,
        cases: Sequence[Case],
        right: Sequence[Answer | None],
        samples_atol: float,
        at_once: int,
        read: Callable[[Any], Answer],
    ) -> None:
        self.rows: list[Row] = []
        self.differences: list[Difference] = []
        self._cases = cases
        self._right: list[Answer | None] = list(right)
        self._whole: list[Answer] = []
        self._atol = samples_atol
        self._at_once = at_once
        self._read = read

    async def run(
        self,
        config: PipelineConfig,
        ways: Sequence[Way],
        prefill_tokens: int,
        pool_tokens: int | None,
        timeout_s: float,
        *,
        processes: bool,
    ) -> None:
        async with running(config, timeout_s, processes=processes) as asker:
            longest = await self._alone(asker)
            for way in (Way.PREFIX, Way.TOGETHER, Way.ABORTED, Way.STREAMED):
                if way in ways:
                    await self._way(way, asker)
        for way, argument, value in (
            (Way.CHUNKED, "chunked_prefill_size", prefill_tokens),
            (Way.RETRACTED, "max_total_tokens", pool_tokens or _pool_for(longest)),
        ):
            if way not in ways:
                continue
            changed = config.model_copy(deep=True)
            if not value or not override_stages(changed, argument, value):
                why = f"no stage takes {argument}" if value else "no result has a usage: give pool_tokens"
                self.rows.append(Row(way, 0, 0, Timing(0.0, 0, 0), f"not asked: {why}"))
                continue
            async with running(changed, timeout_s, processes=processes) as asker:
                await self._way(way, asker)

    async def _alone(self, asker: Asker) -> int:
        """Asks the first time; returns the most tokens that a request takes, 0 if results do not say."""
        began = time.perf_counter()
        replies = await asker.alone(self._cases)
        passed = time.perf_counter() - began
        self._whole = [self._read(reply.result) for reply in replies]
        self._right = [right or whole for right, whole in zip(self._right, self._whole, strict=True)]
        self._compare(Way.ALONE, range(len(self._cases)), replies, passed)
        return max(_taken(reply.result) for reply in replies)

    async def _way(self, way: Way, asker: Asker) -> None:
        count = len(self._cases)
        groups = [list(range(count))]
        if way not in (Way.PREFIX, Way.STREAMED):
            # A small pool must have more to hold, or the requests wait for one another from the beginning.
            size = self._at_once * (2 if way is Way.RETRACTED else 1)
            starts = range(0, count, size)
            groups = [list(islice(cycle(range(count)), start, start + size)) for start in starts]
        counter = {Way.PREFIX: "cached_tokens_total", Way.RETRACTED: "num_retracted_requests_total"}.get(way)
        before = await asker.counted(counter, above=-1) if counter else 0
        aborted = 0
        replies: list[Reply] = []
        began = time.perf_counter()
        for group in groups:
            cases = [self._cases[index] for index in group]
            match way:
                case Way.PREFIX:
                    replies += await asker.alone(cases)
                case Way.STREAMED:
                    replies += await asker.streamed(cases)
                case Way.ABORTED:
                    some, number = await asker.beside_aborted(cases)
                    replies += some
                    aborted += number
                case _:
                    replies += await asker.at_once(cases)
        passed = time.perf_counter() - began
        note = ""
        if counter and await asker.counted(counter, above=before) <= before:
            note = "nothing was found in a cache" if way is Way.PREFIX else "none was retracted"
        elif way is Way.ABORTED:
            note = f"{aborted} aborted"
        elif way is Way.STREAMED and all(reply.pieces is None for reply in replies):
            note = "nothing came in pieces"
        self._compare(way, [index for group in groups for index in group], replies, passed, note)

    def _compare(
        self, way: Way, asked: Sequence[int], replies: Sequence[Reply], passed: float, note: str = ""
    ) -> None:
        equal = steps = 0
        for index, reply in zip(asked, replies, strict=True):
            right = self._right[index]
            steps += right.steps if right else 0
            told = reply.failure or self._told(index, reply)
            if told:
                name = self._cases[index].name or str(index)
                self.differences.append(Difference(name, way, told))
            equal += not told
        self.rows.append(Row(way, len(replies), equal, Timing(passed, len(replies), steps), note))

    def _told(self, index: int, reply: Reply) -> str:
        right = self._right[index]
        assert right is not None
        found = self._read(reply.result)
        if found.samples is None and reply.pieces is not None:
            # Sound that was streamed does not come again with the result.
            found = replace(found, samples=reply.pieces.samples)
        if told := difference(found, right, self._atol):
            return told
        if reply.pieces is None:
            return ""
        pieces, whole = reply.pieces, self._whole[index]
        # A token may come only with the result.
        tokens = found.tokens and found.tokens[: len(pieces.tokens or ())]
        due = Answer(
            tokens=tokens if pieces.tokens is not None else None,
            samples=whole.samples if pieces.samples is not None else None,
            text=whole.text if pieces.text is not None else None,
        )
        told = difference(pieces, due, self._atol)
        return f"its pieces: {told}" if told else ""


def _pool_for(longest: int) -> int:
    return (-(-longest // _PAGE) + 1) * _PAGE if longest else 0


def _taken(result: Any) -> int:
    """Tokens of prompt and answer, as the ``usage`` of a result says, or of one of its stages'."""
    if not isinstance(result, Mapping):
        return 0
    parts = [result, *(each for each in result.values() if isinstance(each, Mapping))]
    return max(
        (
            usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
            for each in parts
            if isinstance(usage := each.get("usage"), Mapping)
        ),
        default=0,
    )
