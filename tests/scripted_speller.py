"""A pipeline of one stage that says its prompt back, and is wrong in one way of asking if it is told to."""

from __future__ import annotations

from queue import Empty, Queue
from typing import Any

import numpy as np

from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox

# Seconds in which requests that are sent together have come; a request alone is held so long.
_TOGETHER_S = 0.05


def right(prompt: str) -> tuple[list[int], list[list[int]], np.ndarray]:
    """Tokens, codes and samples of a prompt."""
    tokens = [ord(letter) for letter in prompt]
    return tokens, [[token, token + 1] for token in tokens], np.repeat(np.float32(tokens) / 256, 3)


class Speller:
    """
    Args:
        fault: When, or in what, it is wrong; empty for never.
    """

    def __init__(self, fault: str) -> None:
        self.inbox: Queue[IncomingMessage | None] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.fault = fault
        self.seen: set[str] = set()
        self.aborted = False
        self.counts = {"cached_tokens_total": 0, "num_retracted_requests_total": 0}

    def start(self) -> None:
        waiting: list[IncomingMessage] = []
        while True:
            try:
                message = self.inbox.get(timeout=_TOGETHER_S) if waiting else self.inbox.get()
            except Empty:
                for each in waiting:
                    self._answer(each, together=len(waiting) > 1)
                waiting.clear()
                continue
            if message is None:
                return
            waiting.append(message)

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        self.aborted = True

    def stats(self) -> dict[str, int]:
        return dict(self.counts)

    def _answer(self, message: IncomingMessage, *, together: bool) -> None:
        prompt = message.data.request.inputs
        cached = prompt in self.seen
        self.seen.add(prompt)
        self.counts["cached_tokens_total"] += cached * len(prompt)
        self.counts["num_retracted_requests_total"] += together
        if self.fault == "failure":
            self.outbox.put(OutgoingMessage(message.request_id, "error", RuntimeError("it is broken")))
            return
        tokens, codes, samples = right(prompt)
        wrong = {"together": together, "cached": cached, "aborted": self.aborted}
        if wrong.get(self.fault) or self.fault in ("tokens", "chunked", "retracted"):
            tokens[-1] += 1
        if self.fault == "codes":
            codes[1][1] += 1
        if self.fault == "samples":
            samples[2] = np.nan
        if self.fault == "short":
            samples = samples[:-1]
        if message.data.request.params.get("stream"):
            for token in tokens[self.fault == "streamed" :]:
                chunk = {"text": chr(token), "token_ids": [token]}
                self.outbox.put(OutgoingMessage(message.request_id, "stream", chunk))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        result = {"text": "".join(map(chr, tokens)), "token_ids": tokens, "usage": usage}
        result |= {"codes": codes, "audio_data": samples}
        self.outbox.put(OutgoingMessage(message.request_id, "result", result))


def create_speller(
    fault: str = "", chunked_prefill_size: int | None = None, max_total_tokens: int | None = None
) -> Speller:
    given = {"chunked": chunked_prefill_size, "retracted": max_total_tokens}
    return Speller("" if fault in given and given[fault] is None else fault)


def create_plain(fault: str = "") -> Speller:
    return Speller(fault)


def config(fault: str = "", factory: str = "create_speller") -> PipelineConfig:
    args: dict[str, Any] = {"fault": fault}
    stage = StageConfig(
        name="spell", process="a", factory=f"{__name__}.{factory}", factory_args=args, terminal=True
    )
    return PipelineConfig(model_path="none", stages=[stage])
